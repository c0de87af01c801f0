"""Modes per caller, streams that are held until they are judged, and the repair attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from structuredllm_gateway.errors import OverloadedError, StructuredOutputError
from structuredllm_gateway.openai.answers import Choice, ToolCall
from structuredllm_gateway.openai.requests import parse_completion_request
from structuredllm_gateway.relay.caller import Caller
from structuredllm_gateway.relay.delivery import HEARTBEAT, HeldBytes, refuse_in_stream
from structuredllm_gateway.relay.exchange import Exchange, Incoming, Record, Route, TryResult
from structuredllm_gateway.relay.raw_text import HEADER, raw_text, wanted_chars
from structuredllm_gateway.relay.repair import repaired_exchange
from structuredllm_gateway.upstream.endpoints import (
    GrammarBackend,
    ModelPool,
    Snapshot,
    StreamDelivery,
    StructuredPolicy,
    ValidationMode,
)
from structuredllm_gateway.validation.outcomes import Outcome
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import (
    SCHEMA,
    FixedEndpoints,
    data_of,
    events_of,
    gateway,
    plain,
    pool_of,
    settings_with,
    structured,
    until,
)

_BUFFER = StructuredPolicy(streaming=StreamDelivery.BUFFER)
_REPAIR = StructuredPolicy(repair=True)


def with_policy(
    *engines: FakeEngine | str, policy: StructuredPolicy, mode: ValidationMode = ValidationMode.ENFORCE
) -> FixedEndpoints:
    pool = pool_of(*engines, mode=mode).view.pools["toy"]
    return FixedEndpoints(Snapshot({"toy": replace(pool, structured=policy)}, synced=True))


@asynccontextmanager
async def held_engine() -> AsyncIterator[tuple[str, asyncio.Event, list[Any]]]:
    """Serve streams whose end waits for an event; `wire` may be changed by the test."""
    go = asyncio.Event()
    wire: list[Any] = [_chunk('"a", "age": 1}', "stop"), "data: [DONE]\n\n"]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_chunk('{"name": ').encode())
        await go.wait()
        for part in wire:
            await response.write(part.encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", go, wire
    finally:
        await runner.cleanup()


def _chunk(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return "data: " + json.dumps({"choices": [choice]}) + "\n\n"


def _exchange(caller: Caller | None, mode: ValidationMode) -> Exchange:
    async def body() -> bytes:
        return b""

    request = parse_completion_request(json.dumps(structured()).encode())
    incoming = Incoming(Route.CHAT, "r", {}, body, caller)
    return Exchange(incoming, request, b"", ModelPool("toy", mode), None, 1.0, Record(0.0))


@pytest.mark.parametrize("of_model", ValidationMode)
@pytest.mark.parametrize("of_caller", [None, *ValidationMode])
def test_a_caller_overrides_the_models_mode(
    of_model: ValidationMode, of_caller: ValidationMode | None
) -> None:
    assert _exchange(None, of_model).mode is of_model
    assert _exchange(Caller("a", of_caller), of_model).mode is (of_caller or of_model)


async def test_held_stream_comes_as_a_stream_with_its_verdict_in_the_head() -> None:
    async with FakeEngine() as engine, gateway(with_policy(engine, policy=_BUFFER)) as run:
        answer = await run.ask(structured(stream=True))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-structuredllm-outcome"] == "ok"
        events = events_of(answer.text)
        assert events[-2:] == [": structuredllm outcome=ok", "data: [DONE]"]
        text = "".join(item["choices"][0]["delta"].get("content") or "" for item in data_of(events))
        assert set(json.loads(text)) == {"name", "age"}
        assert run.metric("time_to_first_token_seconds_count", model="toy") == 1
        assert run.metric("held_stream_bytes") == 0


@pytest.mark.parametrize("mode", [Mode.SCHEMA_VIOLATION, Mode.INVALID_JSON, Mode.DEAD_MID_STREAM])
async def test_held_stream_that_is_wrong_is_made_again_elsewhere(mode: Mode) -> None:
    async with (
        FakeEngine(mode) as bad,
        FakeEngine() as good,
        gateway(with_policy(bad, good, policy=_BUFFER)) as run,
    ):
        answer = await run.ask(structured(stream=True))
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, "ok")
        assert answer.headers["x-structuredllm-attempts"] == "2"
        assert "x" * 99 not in answer.text
        assert (len(bad.received), len(good.received)) == (1, 1)


async def test_held_stream_that_stays_wrong_is_refused_with_a_status() -> None:
    async with (
        FakeEngine(Mode.SCHEMA_VIOLATION) as engine,
        gateway(with_policy(engine, policy=_BUFFER)) as run,
    ):
        answer = await run.ask(structured(stream=True))
        assert answer.status_code == 502
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "structured_output_failed"
        assert run.metric("held_stream_bytes") == 0


async def test_observe_gives_a_held_wrong_stream_with_its_class() -> None:
    async with FakeEngine(Mode.SCHEMA_VIOLATION) as engine:
        pool = with_policy(engine, policy=_BUFFER, mode=ValidationMode.OBSERVE)
        async with gateway(pool) as run:
            answer = await run.ask(structured(stream=True))
            assert answer.status_code == 200
            assert answer.headers["x-structuredllm-outcome"] == "schema_violation"


@pytest.mark.parametrize("mode", [ValidationMode.ENFORCE, ValidationMode.OFF])
async def test_only_judged_streams_are_held(mode: ValidationMode) -> None:
    body = plain(stream=True) if mode is ValidationMode.ENFORCE else structured(stream=True)
    async with FakeEngine() as engine, gateway(with_policy(engine, policy=_BUFFER, mode=mode)) as run:
        answer = await run.ask(body)
        assert "x-structuredllm-outcome" not in answer.headers
        assert events_of(answer.text)[-2] == ": structuredllm outcome=plain"


@pytest.mark.parametrize("valid", [True, False])
async def test_heartbeats_keep_a_held_stream_alive_and_fix_its_status(valid: bool) -> None:
    settings = settings_with(validation={"heartbeat_seconds": 0.01})
    async with held_engine() as (url, go, wire), gateway(with_policy(url, policy=_BUFFER), settings) as run:
        if not valid:
            wire[0] = _chunk('"a"}', "stop")
        async with run.http.stream("POST", "/v1/chat/completions", json=structured(stream=True)) as answer:
            assert answer.status_code == 200
            assert "x-structuredllm-outcome" not in answer.headers
            parts = answer.aiter_bytes()
            first = await anext(parts)
            assert first.startswith(HEARTBEAT)
            go.set()
            rest = b"".join([part async for part in parts]).replace(HEARTBEAT, b"").decode()
        events = events_of(rest)
        outcome = "ok" if valid else "schema_violation"
        assert events[-2:] == [f": structuredllm outcome={outcome}", "data: [DONE]"]
        if valid:
            text = "".join(item["choices"][0]["delta"]["content"] for item in data_of(events))
            assert json.loads(text) == {"name": "a", "age": 1}
        else:
            assert data_of(events)[0]["error"]["code"] == "structured_output_failed"
            assert len(data_of(events)) == 1
        assert run.request_lines[0]["outcome"] == outcome
        assert run.request_lines[0]["status"] == 200


async def test_held_stream_above_its_bound_is_refused() -> None:
    settings = settings_with(validation={"max_held_bytes": 1024})
    async with (
        FakeEngine(script=FakeScript(chunk_chars=1)) as engine,
        gateway(with_policy(engine, policy=_BUFFER), settings) as run,
    ):
        answer = await run.ask(structured(stream=True))
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_too_large")
        assert run.metric("held_stream_bytes") == 0


def test_all_held_streams_together_are_bounded() -> None:
    held = HeldBytes(10, 15, 2)
    held.take(0, 10)
    held.take(0, 5)
    with pytest.raises(OverloadedError) as caught:
        held.take(5, 1)
    assert caught.value.retry_after_seconds == 2
    held.give_back(10)
    held.take(5, 1)
    assert held.total == 6


async def test_client_that_leaves_a_held_stream_frees_it() -> None:
    settings = settings_with(validation={"heartbeat_seconds": 0.01})
    async with held_engine() as (url, go, _wire), gateway(with_policy(url, policy=_BUFFER), settings) as run:
        body = structured(stream=True)
        async with run.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert (await anext(answer.aiter_bytes())).startswith(HEARTBEAT)
            await until(lambda: (run.metric("held_stream_bytes") or 0) > 0)
        await until(lambda: run.request_lines)
        assert run.request_lines[0]["outcome"] == "client_closed"
        assert run.metric("held_stream_bytes") == 0
        go.set()


def _answers(*modes: Mode) -> Callable[[], FakeEngine]:
    return lambda: FakeEngine(script=FakeScript(per_request=modes))


@pytest.mark.parametrize("stream", [False, True])
async def test_repair_tells_the_model_what_was_wrong(stream: bool) -> None:
    policy = replace(_REPAIR, streaming=StreamDelivery.BUFFER)
    async with (
        _answers(Mode.SCHEMA_VIOLATION, Mode.HEALTHY)() as engine,
        gateway(with_policy(engine, policy=policy)) as run,
    ):
        answer = await run.ask(structured(stream=stream))
        assert answer.status_code == 200
        assert answer.headers["x-structuredllm-outcome"] == "ok"
        assert answer.headers["x-structuredllm-repair"] == "ok"
        first, second = (item.body for item in engine.received)
        assert second["messages"][:-1] == first["messages"]
        told = second["messages"][-1]
        assert told["role"] == "user"
        assert "violates" in told["content"]
        assert {k: v for k, v in second.items() if k != "messages"} == {
            k: v for k, v in first.items() if k != "messages"
        }
        assert run.metric("repairs_total", model="toy", outcome="ok") == 1
        assert run.metric("upstream_attempts_total", model="toy", reason="repair") == 1
        assert run.request_lines[0]["repair"] == "ok"


async def test_repair_is_one_try_after_all_others_and_may_fail() -> None:
    settings = settings_with(upstream={"max_attempts": 5})
    async with (
        FakeEngine(Mode.SCHEMA_VIOLATION) as a,
        FakeEngine(Mode.SCHEMA_VIOLATION) as b,
        gateway(with_policy(a, b, policy=_REPAIR), settings) as run,
    ):
        answer = await run.ask(structured())
        assert answer.status_code == 502
        assert answer.headers["x-structuredllm-repair"] == "schema_violation"
        assert len(a.received) + len(b.received) == 3


@pytest.mark.parametrize(
    ("policy", "mode", "engine_mode", "path"),
    [
        (StructuredPolicy(), ValidationMode.ENFORCE, Mode.SCHEMA_VIOLATION, "chat/completions"),
        (_REPAIR, ValidationMode.OBSERVE, Mode.SCHEMA_VIOLATION, "chat/completions"),
        (_REPAIR, ValidationMode.ENFORCE, Mode.TRUNCATED, "chat/completions"),
        (_REPAIR, ValidationMode.ENFORCE, Mode.PLAIN_500, "chat/completions"),
        (_REPAIR, ValidationMode.ENFORCE, Mode.SCHEMA_VIOLATION, "completions"),
        (_REPAIR, ValidationMode.ENFORCE, Mode.HEALTHY, "chat/completions"),
    ],
)
async def test_no_repair_where_none_is_wanted_or_none_can_help(
    policy: StructuredPolicy, mode: ValidationMode, engine_mode: Mode, path: str
) -> None:
    async with (
        FakeEngine(engine_mode) as engine,
        gateway(with_policy(engine, policy=policy, mode=mode)) as run,
    ):
        body = structured()
        if path == "completions":
            body["prompt"] = str(body.pop("messages"))
        answer = await run.ask(body, f"/v1/{path}")
        assert "x-structuredllm-repair" not in answer.headers
        assert len(engine.received) == 1


@pytest.mark.parametrize(
    ("outcome", "made"),
    [(Outcome.SCHEMA_VIOLATION, True), (Outcome.IN_REASONING, True), (Outcome.WHITESPACE_RUNAWAY, False)],
)
def test_no_repair_of_what_the_token_limit_ended(outcome: Outcome, made: bool) -> None:
    policy = StructuredPolicy(repair=True)
    exchange = _exchange(None, ValidationMode.ENFORCE)
    exchange = replace(
        exchange, body=b'{"messages": []}', pool=replace(exchange.pool, structured=policy), deadline=9.0
    )
    wrong = TryResult(outcome, error=StructuredOutputError("wrong", outcome=outcome))
    assert (repaired_exchange(exchange, wrong, 0.0) is not None) is made


@pytest.mark.parametrize(("route", "end"), [(Route.CHAT, "data: [DONE]"), (Route.RESPONSES, "event: error")])
async def test_a_refusal_after_a_heartbeat_has_the_shape_of_its_route(route: Route, end: str) -> None:
    written: list[bytes] = []

    class Kept:
        started = True

        async def start(self, status: int, headers: Any) -> None:
            raise AssertionError("started twice")

        async def write(self, data: bytes) -> None:
            written.append(data)

        async def end(self) -> None:
            written.append(b"")

    incoming = replace(_exchange(None, ValidationMode.ENFORCE).incoming, route=route)
    await refuse_in_stream(OverloadedError("full"), incoming, Kept())
    events = events_of(b"".join(written).decode())
    assert any(event.startswith(end) for event in events)
    assert ("data: [DONE]" in events) is (route is Route.CHAT)
    assert ": structuredllm outcome=overloaded" in events


def test_pools_of_several_resources_hold_streams_if_one_does_and_repair_if_all_do() -> None:
    both = _BUFFER.joined(_REPAIR)
    assert both == StructuredPolicy(StreamDelivery.BUFFER, repair=False)
    assert _REPAIR.joined(_REPAIR).repair


@pytest.mark.parametrize("stream", [False, True])
async def test_raw_text_of_a_refused_answer_only_if_asked_for(stream: bool) -> None:
    settings = settings_with(validation={"max_raw_chars": 5})
    async with (
        FakeEngine(Mode.INVALID_JSON) as engine,
        gateway(with_policy(engine, policy=_BUFFER), settings) as run,
    ):
        unasked = await run.ask(structured(stream=stream))
        path, headers = "/v1/chat/completions", {"x-structuredllm-include-raw": "true"}
        asked = await run.http.post(path, json=structured(stream=stream), headers=headers)
        assert (unasked.status_code, asked.status_code) == (502, 502)
        assert "raw" not in unasked.json()["error"]
        raw = asked.json()["error"]["raw"]
        assert raw.startswith("{{")
        assert len(raw) == 5 + len("... (cut)")
        assert raw[:5] not in str(run.logs)


def test_raw_text_is_of_the_choice_at_fault_and_can_always_be_written() -> None:
    choices = [Choice(0, "right", "stop"), Choice(1, "\ud800 wrong", "stop")]
    assert raw_text(choices, 1, 100) == "? wrong"
    assert raw_text(choices, None, 100) == ""
    called = Choice(0, None, "tool_calls", (ToolCall("f", "{}"), ToolCall("f", "[]")))
    assert raw_text([called], 0, 100) == "{}\n[]"
    assert raw_text(choices, 1, 0) is None
    assert [wanted_chars({HEADER: value}, 9) for value in ("true", "1", "false", "")] == [9, 9, 0, 0]
    assert wanted_chars({}, 9) == 0


@pytest.mark.parametrize(("policy", "status"), [("warn", 200), ("validate", 200), ("reject", 400)])
async def test_keywords_that_the_grammar_does_not_enforce(policy: str, status: int) -> None:
    settings = settings_with(validation={"unenforced_keywords": policy})
    schema = {**SCHEMA, "not": {"required": ["b"]}}
    async with FakeEngine() as engine:
        guided = StructuredPolicy(backends=frozenset({GrammarBackend.GUIDANCE}))
        async with gateway(with_policy(engine, policy=guided), settings) as run:
            answer = await run.ask(structured(schema))
            assert answer.status_code == 200
            assert "x-structuredllm-warning" not in answer.headers
        async with gateway(pool_of(engine), settings) as run:
            answer = await run.ask(structured(schema))
            assert answer.status_code == status
            assert ("not" in answer.headers.get("x-structuredllm-warning", "")) is (policy == "warn")
            if status == 400:
                assert answer.json()["error"]["code"] == "keyword_not_enforced"
            assert run.metric("unenforced_keywords_total", model="toy", keyword="not") == 1


async def test_refusals_are_counted_by_rule_and_name_the_model() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        await run.ask(plain(n=1000))
        await run.ask(plain(n=1000))
        assert run.metric("request_refusals_total", rule="too_many_choices") == 2
        labels = {"model": "toy", "route": "chat", "code": "400", "outcome": "request_rejected"}
        assert run.metric("requests_total", **labels) == 2
