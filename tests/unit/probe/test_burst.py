"""The burst against the fake engine over real sockets: one test per mode, deadlines, concurrency."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from structuredllm_probe import BurstConfig, BurstReport, Verdict, run_burst
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode

_CONFIG = BurstConfig(requests=8, concurrency=8, timeout_seconds=20.0, seed="unit")
# Long enough for a loaded machine to connect, short enough for a unit test.
_SHORT = BurstConfig(requests=4, concurrency=4, timeout_seconds=1.0, seed="unit")


async def _until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; the fake engine runs in this loop."""
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - its counters have no event
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("mode", "verdict", "reason", "counts"),
    [
        (Mode.HEALTHY, Verdict.HEALTHY, "BurstPassed", {"valid": 6, "plain_ok": 2}),
        (Mode.SLOW, Verdict.HEALTHY, "BurstPassed", {"valid": 6, "plain_ok": 2}),
        (
            Mode.COLD_REJECT,
            Verdict.FAULTY,
            "GrammarRejected",
            {"valid": 3, "grammar_rejected": 3, "plain_ok": 2},
        ),
        (Mode.ALWAYS_REJECT, Verdict.FAULTY, "GrammarRejected", {"grammar_rejected": 6, "plain_ok": 2}),
        (Mode.INVALID_JSON, Verdict.FAULTY, "SchemaInvalid", {"not_json": 6, "plain_ok": 2}),
        (Mode.SCHEMA_VIOLATION, Verdict.FAULTY, "SchemaInvalid", {"schema_violation": 6, "plain_ok": 2}),
        (Mode.TRAILING_TEXT, Verdict.FAULTY, "SchemaInvalid", {"trailing_or_leading_text": 6, "plain_ok": 2}),
        (Mode.EMPTY, Verdict.FAULTY, "SchemaInvalid", {"empty": 6, "plain_ok": 2}),
        (Mode.TRUNCATED, Verdict.UNKNOWN, "Inconclusive", {"truncated": 6, "plain_ok": 2}),
        (Mode.PLAIN_500, Verdict.UNKNOWN, "Inconclusive", {"http_5xx": 6, "plain_failed": 2}),
        (Mode.UNSTRUCTURED_500, Verdict.UNKNOWN, "Inconclusive", {"valid": 6, "plain_failed": 2}),
        (Mode.BAD_REQUEST, Verdict.UNKNOWN, "Inconclusive", {"http_4xx": 6, "plain_failed": 2}),
        (Mode.OVERLOADED, Verdict.UNKNOWN, "Inconclusive", {"http_5xx": 6, "plain_failed": 2}),
        (Mode.DEAD, Verdict.UNKNOWN, "EngineUnreachable", {"connect_error": 6, "plain_failed": 2}),
        (
            Mode.DEAD_MID_STREAM,
            Verdict.UNKNOWN,
            "Inconclusive",
            {"stream_error": 3, "connect_error": 3, "plain_failed": 2},
        ),
    ],
)
async def test_modes(mode: Mode, verdict: Verdict, reason: str, counts: dict[str, int]) -> None:
    script = FakeScript(rejects=3, delay_seconds=0.01)
    async with FakeEngine(mode, script=script) as engine:
        report = await run_burst(engine.url, "toy", _CONFIG)
    assert (report.verdict, report.reason, report.counts) == (verdict, reason, counts)
    assert (report.requests, report.structured) == (8, 6)


@pytest.mark.parametrize("mode", [Mode.HANG, Mode.HANG_MID_STREAM])
async def test_a_hang_behind_a_good_health_check_is_a_fault_and_leaves_nothing(mode: Mode) -> None:
    async with FakeEngine(mode) as engine:
        report = await run_burst(engine.url, "toy", _SHORT)
        assert (report.verdict, report.reason) == (Verdict.FAULTY, "ProbeTimeout")
        assert 0.9 <= report.duration_seconds < 10.0
        assert engine.max_in_flight == 4
        await _until(lambda: engine.in_flight == 0)
        assert engine.disconnects == 4
    running = [task for task in asyncio.all_tasks() if "_Sender" in str(task.get_coro())]
    assert running == []


async def test_answers_before_the_deadline_count_and_unsent_requests_are_late() -> None:
    script = FakeScript(per_request=(Mode.HEALTHY, Mode.HEALTHY))
    config = BurstConfig(requests=6, concurrency=1, timeout_seconds=0.6, plain_share=0.0, seed="unit")
    async with FakeEngine(Mode.HANG, script=script) as engine:
        report = await run_burst(engine.url, "toy", config)
        assert len(engine.requests) == 3
    assert report.counts == {"valid": 2, "timeout": 4}
    assert report.reason == "ProbeTimeout"


async def test_a_cancelled_caller_ends_all_requests() -> None:
    async with FakeEngine(Mode.HANG) as engine:
        task = asyncio.create_task(run_burst(engine.url, "toy", _CONFIG))
        await _until(lambda: engine.in_flight == 8)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: engine.in_flight == 0)


async def test_concurrency_is_reached() -> None:
    """Nothing is answered before all 24 are in flight: less concurrency ends in a timeout."""
    config = BurstConfig(timeout_seconds=20.0, seed="unit")
    async with FakeEngine(script=FakeScript(hold_until_in_flight=24)) as engine:
        report = await run_burst(engine.url, "toy", config)
        assert engine.max_in_flight == 24
    assert report.verdict is Verdict.HEALTHY


async def test_concurrency_is_not_exceeded() -> None:
    config = BurstConfig(requests=12, concurrency=3, timeout_seconds=20.0, seed="unit")
    async with FakeEngine(script=FakeScript(hold_until_in_flight=3)) as engine:
        report = await run_burst(engine.url, "toy", config)
        assert engine.max_in_flight == 3
    assert report.verdict is Verdict.HEALTHY


async def test_a_second_burst_with_another_seed_is_cold_again() -> None:
    script = FakeScript(rejects=None)
    async with FakeEngine(Mode.COLD_REJECT, script=script) as engine:
        first = await run_burst(engine.url, "toy", _CONFIG)
        warm = await run_burst(engine.url, "toy", _CONFIG)
        cold = await run_burst(engine.url, "toy", BurstConfig(requests=8, timeout_seconds=30.0, seed="other"))
    reasons = [report.reason for report in (first, warm, cold)]
    assert reasons == ["GrammarRejected", "BurstPassed", "GrammarRejected"]
    assert first.counts["grammar_rejected"] == cold.counts["grammar_rejected"] == 6


async def test_what_is_sent_is_cold_and_mixed() -> None:
    async with FakeEngine() as engine:
        await run_burst(engine.url, "toy", _CONFIG)
        formats = [body["response_format"] for body in engine.requests if "response_format" in body]
        assert len({json.dumps(item["json_schema"]["schema"]) for item in formats}) == 6
        assert {(b["stream"], "response_format" in b) for b in engine.requests} == {
            (True, True),
            (True, False),
            (False, True),
            (False, False),
        }


async def test_one_reject_in_a_stream_is_found() -> None:
    script = FakeScript(rejects=1, reject_after_chars=5)
    config = BurstConfig(requests=4, plain_share=0.0, stream_share=1.0, timeout_seconds=20.0, seed="unit")
    async with FakeEngine(Mode.COLD_REJECT, script=script) as engine:
        report = await run_burst(engine.url, "toy", config)
    assert report.counts == {"valid": 3, "grammar_rejected": 1}


async def test_progress_counts_up_to_all() -> None:
    seen: list[tuple[int, int]] = []
    async with FakeEngine() as engine:
        await run_burst(engine.url, "toy", _CONFIG, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 8) for n in range(1, 9)]


async def test_a_failing_progress_callback_ends_the_burst() -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError(f"{done} of {total}")

    async with FakeEngine() as engine:
        with pytest.raises(RuntimeError, match="of 8"):
            await run_burst(engine.url, "toy", _CONFIG, progress=fail)
        await _until(lambda: engine.in_flight == 0)


async def test_the_clock_and_the_client_of_the_caller_are_used() -> None:
    ticks = iter([100.0, 102.5])
    async with (
        FakeEngine(script=FakeScript(api_key="k")) as engine,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        client.headers["Authorization"] = "Bearer k"
        report = await run_burst(
            f"{engine.url}/v1/", "toy", _CONFIG, client=client, clock=lambda: next(ticks)
        )
        assert not client.is_closed
    assert report.verdict is Verdict.HEALTHY
    assert report.duration_seconds == 2.5


async def test_a_wrong_model_is_inconclusive_and_says_so() -> None:
    async with FakeEngine() as engine:
        report = await run_burst(engine.url, "nope", _CONFIG)
    assert report.reason == "Inconclusive"
    assert "`nope` does not exist" in report.message


async def _closed_port() -> str:
    async with FakeEngine(telemetry_port=None) as engine:
        return engine.url


async def test_a_closed_port_is_unreachable() -> None:
    report = await run_burst(await _closed_port(), "toy", _CONFIG)
    assert (report.verdict, report.reason) == (Verdict.UNKNOWN, "EngineUnreachable")


async def test_a_socket_that_says_nothing_at_all_is_unreachable() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        report: BurstReport = await run_burst(f"http://{host}:{port}", "toy", _SHORT)
    assert (report.verdict, report.reason) == (Verdict.UNKNOWN, "EngineUnreachable")
