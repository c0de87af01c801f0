"""Streams through the gateway, over real sockets: what passes, when, and how a stream ends."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from structuredllm_gateway.upstream.endpoints import ValidationMode
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import (
    data_of,
    events_of,
    gateway,
    plain,
    pool_of,
    settings_with,
    structured,
    until,
)


def _comment(outcome: str) -> str:
    return f": structuredllm outcome={outcome}"


async def test_good_stream_passes_byte_for_byte_with_the_verdict_before_the_end_mark() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        direct = await direct_post(
            engine.url, structured(stream=True, stream_options={"include_usage": True})
        )
        answer = await run.ask(structured(stream=True, stream_options={"include_usage": True}))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-structuredllm-replica"] == "r0"
        events = events_of(answer.text)
        assert events[-2:] == [_comment("ok"), "data: [DONE]"]
        expected = events_of(direct.replace("fake-1", "fake-2"))
        assert [*events[:-2], events[-1]] == expected
        assert run.request_lines[0]["ttft_seconds"] is not None
        assert run.metric("time_to_first_token_seconds_count", model="toy") == 1
        assert run.metric("requests_total", model="toy", route="chat", code="200", outcome="ok") == 1


async def direct_post(base: str, body: object) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(base + "/v1/chat/completions", json=body) as response,
    ):
        return await response.text()


async def test_plain_stream_is_not_judged() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(plain(stream=True))
        assert events_of(answer.text)[-2:] == [_comment("plain"), "data: [DONE]"]


async def test_text_completion_stream_is_judged() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        body = {
            "model": "toy",
            "prompt": "p",
            "stream": True,
            "structured_outputs": {"json": {"type": "object"}},
        }
        answer = await run.ask(body, "/v1/completions")
        assert events_of(answer.text)[-2] == _comment("ok")


async def test_bytes_pass_while_the_engine_still_works() -> None:
    async with (
        FakeEngine(Mode.HANG_MID_STREAM) as engine,
        gateway(pool_of(engine)) as run,
        run.http.stream("POST", "/v1/chat/completions", json=structured(stream=True)) as answer,
    ):
        chunks = answer.aiter_raw()
        first = await asyncio.wait_for(anext(chunks), 2)
        assert b'"role"' in first
        assert engine.in_flight == 1


async def test_client_that_leaves_a_stream_cancels_the_engine() -> None:
    async with FakeEngine(Mode.HANG_MID_STREAM) as engine, gateway(pool_of(engine)) as run:
        async with run.http.stream("POST", "/v1/chat/completions", json=structured(stream=True)) as answer:
            await anext(answer.aiter_raw())
        await until(lambda: not (engine.in_flight or not run.request_lines))
        assert engine.disconnects == 1
        assert run.request_lines[0]["outcome"] == "client_closed"


@pytest.mark.parametrize("names_causes", [False, True])
async def test_reject_before_the_first_part_is_tried_on_another_replica(names_causes: bool) -> None:
    async with (
        FakeEngine(Mode.ALWAYS_REJECT, script=FakeScript(names_causes=names_causes)) as bad,
        FakeEngine() as good,
        gateway(pool_of(bad, good)) as run,
    ):
        answer = await run.ask(structured(stream=True))
        assert answer.headers["x-structuredllm-attempts"] == "2"
        assert answer.headers["x-structuredllm-fsm-errors"] == "1"
        assert events_of(answer.text)[-2] == _comment("ok")
        # The role chunk of the first try was taken back.
        assert answer.text.count('"role"') == 1
        labels = {"schema": run.request_lines[0]["schema"][:16], "backend": "auto"}
        assert run.metric("fsm_errors_total", model="toy", replica="r0", **labels) == 1


async def test_reject_on_all_replicas_before_the_first_part_is_a_502() -> None:
    async with FakeEngine(Mode.ALWAYS_REJECT) as a, gateway(pool_of(a)) as run:
        answer = await run.ask(structured(stream=True))
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "structured_output_failed"
        assert answer.headers["x-structuredllm-outcome"] == "grammar_rejected"


async def test_reject_after_bytes_are_out_ends_the_stream_with_one_error_event() -> None:
    script = FakeScript(reject_after_chars=8, chunk_chars=4, chunk_delay_seconds=0.03)
    async with (
        FakeEngine(Mode.ALWAYS_REJECT, script=script) as bad,
        FakeEngine() as good,
        gateway(pool_of(bad, good)) as run,
    ):
        answer = await run.ask(structured(stream=True))
        assert answer.status_code == 200
        events = events_of(answer.text)
        assert events[-2:] == [_comment("grammar_rejected"), "data: [DONE]"]
        errors = [item["error"] for item in data_of(events) if "error" in item]
        assert [(e["code"], e["type"]) for e in errors] == [("structured_output_failed", "server_error")]
        assert good.received == []
        assert run.request_lines[0]["fsm_errors"] == 1
        labels = {"schema": run.request_lines[0]["schema"][:16], "backend": "auto"}
        assert run.metric("fsm_errors_total", model="toy", replica="r0", **labels) == 1


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        (Mode.INVALID_JSON, "not_json"),
        (Mode.SCHEMA_VIOLATION, "schema_violation"),
        (Mode.TRAILING_TEXT, "trailing_or_leading_text"),
    ],
)
@pytest.mark.parametrize("validation", [ValidationMode.ENFORCE, ValidationMode.OBSERVE])
async def test_wrong_stream_ends_with_an_error_in_enforce_and_a_comment_in_observe(
    mode: Mode, outcome: str, validation: ValidationMode
) -> None:
    script = FakeScript(chunk_chars=4, chunk_delay_seconds=0.01)
    async with (
        FakeEngine(mode, script=script) as engine,
        gateway(pool_of(engine, mode=validation)) as run,
    ):
        answer = await run.ask(structured(stream=True))
        events = events_of(answer.text)
        assert events[-2:] == [_comment(outcome), "data: [DONE]"]
        errors = [item for item in data_of(events) if "error" in item]
        assert len(errors) == (1 if validation is ValidationMode.ENFORCE else 0)
        assert run.request_lines[0]["outcome"] == outcome


@pytest.mark.parametrize("kind", ["grammar_dead_end", "grammar_compile_timeout"])
async def test_a_schemas_fault_named_in_a_stream_is_refused_and_not_tried_again(kind: str) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        error = {"message": "It is stuck.", "type": kind, "param": None, "code": kind, "request_id": "c-1"}
        await response.write(f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n".encode())
        return response

    async with serving(answer) as url, FakeEngine() as good, gateway(pool_of(url, good)) as run:
        answered = await run.ask(structured(stream=True))
        assert answered.status_code == 400
        found = answered.json()["error"]
        assert (found["code"], found["type"], found["message"]) == (
            kind,
            "invalid_request_error",
            "It is stuck.",
        )
        assert answered.headers["x-structuredllm-outcome"] == "schema_rejected"
        assert len(asked) == 1
        assert good.received == []


async def test_truncated_stream_passes_named() -> None:
    async with FakeEngine(Mode.TRUNCATED) as engine, gateway(pool_of(engine)) as run:
        events = events_of((await run.ask(structured(stream=True))).text)
        assert events[-2] == _comment("truncated")
        assert not [item for item in data_of(events) if "error" in item]


async def test_empty_stream_is_refused_with_a_status() -> None:
    async with FakeEngine(Mode.EMPTY) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(structured(stream=True))
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (502, "empty")


@pytest.mark.parametrize("body", [structured(stream=True), plain(stream=True)])
async def test_stream_that_breaks_off_ends_with_an_error_event(body: dict[str, object]) -> None:
    async with FakeEngine(Mode.DEAD_MID_STREAM) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(body)
        if answer.status_code == 200:
            events = events_of(answer.text)
            assert events[-2:] == [_comment("stream_aborted"), "data: [DONE]"]
            assert data_of(events)[-1]["error"]["code"] == "upstream_stream_aborted"
        else:
            assert answer.status_code == 502
        assert run.request_lines[0]["outcome"] == "stream_aborted"


async def test_silent_stream_is_ended_with_an_error_event() -> None:
    settings = settings_with(upstream={"stream_idle_timeout_seconds": 0.2})
    async with FakeEngine(Mode.HANG_MID_STREAM) as engine, gateway(pool_of(engine), settings) as run:
        events = events_of((await run.ask(structured(stream=True))).text)
        assert events[-2:] == [_comment("timeout"), "data: [DONE]"]
        assert data_of(events)[-1]["error"]["code"] == "upstream_timeout"


async def test_engine_error_before_a_stream_keeps_its_status() -> None:
    async with FakeEngine(Mode.BAD_REQUEST) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(plain(stream=True))
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")


def _chunk(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return "data: " + json.dumps({"choices": [choice]})


@pytest.mark.parametrize(
    ("wire", "outcome"),
    [
        # CRLF, a comment, glued events, no end mark, a split in the middle of a character
        ([": hi\r\n\r\n" + _chunk('{"name": "\u00e9",') + "\r\n\r\n", _chunk('"age": 1}', "stop")], "ok"),
        ([_chunk('{"name": "a", "age": 1}') + "\n\n" + "data: [DONE]\n\n"], "stream_aborted"),
        ([_chunk('{"name": ') + "\n\n"], "stream_aborted"),
        (["data: {broken\n\n"], "stream_error"),
        (["data: [DONE]\n\n"], "stream_empty"),
        ([], "stream_empty"),
        ([_chunk('{"name": "a", "age": NaN}', "stop") + "\n\ndata: [DONE]\n\n"], "not_json"),
    ],
)
async def test_odd_wire_forms_are_a_class_and_never_a_wrong_ok(wire: list[str], outcome: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in wire:
            data = part.encode()
            for start in range(0, len(data), 7):
                await response.write(data[start : start + 7])
        return response

    async with serving(answer) as url, gateway(pool_of(url)) as run:
        await run.ask(structured(stream=True))
        assert run.request_lines[0]["outcome"] == outcome


class serving:
    """Serve one handler for chat completions on a free port."""

    def __init__(self, handler: object) -> None:
        self._app = web.Application()
        self._app.router.add_post("/v1/chat/completions", handler)  # type: ignore[arg-type]

    async def __aenter__(self) -> str:
        self._runner = web.AppRunner(self._app, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
