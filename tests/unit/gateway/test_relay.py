"""Whole answers through the gateway, over real sockets: classes, retries, what each side sees."""

from __future__ import annotations

import asyncio
import json

import pytest

from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointState,
    ModelPool,
    Snapshot,
    ValidationMode,
)
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import (
    FixedEndpoints,
    gateway,
    plain,
    pool_of,
    settings_with,
    structured,
    until,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_valid_structured_answer_passes_unchanged_and_is_named_ok() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(structured())
        assert answer.status_code == 200
        assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"name", "age"}
        assert answer.headers["x-structuredllm-outcome"] == "ok"
        assert answer.headers["x-structuredllm-attempts"] == "1"
        assert answer.headers["x-structuredllm-replica"] == "r0"
        assert answer.headers["x-structuredllm-fsm-errors"] == "0"
        assert run.metric("requests_total", model="toy", route="chat", code="200", outcome="ok") == 1
        assert run.metric("upstream_attempts_total", model="toy", reason="first") == 1
        assert run.metric("request_duration_seconds_count", model="toy", route="chat") == 1
        assert run.metric("inflight_requests") == 0


async def test_engine_gets_the_same_bytes_the_request_id_and_no_credentials() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        raw = b'{ "model" : "toy", "messages":[], "unknown_to_us": 1.50 }'
        headers = {
            "authorization": "Bearer secret",
            "cookie": "a=b",
            "x-request-id": "req-1",
            "traceparent": TRACEPARENT,
            "content-type": "text/plain",
        }
        answer = await run.http.post("/v1/chat/completions", content=raw, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "req-1"
        seen = engine.received[0]
        assert seen.headers["content-length"] == str(len(raw))
        assert seen.headers["x-request-id"] == "req-1"
        assert seen.headers["traceparent"] == TRACEPARENT
        assert seen.headers["content-type"] == "application/json"
        assert not {"authorization", "cookie"} & set(seen.headers)


async def test_plain_answer_and_text_completion_pass() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        chat = await run.ask(plain())
        text = await run.ask({"model": "toy", "prompt": "p"}, "/v1/completions")
        assert chat.headers["x-structuredllm-outcome"] == "plain"
        assert text.headers["x-structuredllm-outcome"] == "plain"
        assert (
            run.metric("requests_total", model="toy", route="completions", code="200", outcome="plain") == 1
        )


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        (Mode.INVALID_JSON, "not_json"),
        (Mode.SCHEMA_VIOLATION, "schema_violation"),
        (Mode.TRAILING_TEXT, "trailing_or_leading_text"),
        (Mode.EMPTY, "empty"),
        (Mode.ALWAYS_REJECT, "grammar_rejected"),
    ],
)
async def test_enforce_refuses_a_wrong_answer_after_one_try_on_another_replica(
    mode: Mode, outcome: str
) -> None:
    async with FakeEngine(mode) as a, FakeEngine(mode) as b, gateway(pool_of(a, b)) as run:
        answer = await run.ask(structured())
        assert answer.status_code == 502
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "structured_output_failed")
        assert answer.headers["x-structuredllm-outcome"] == outcome
        assert answer.headers["x-structuredllm-attempts"] == "2"
        assert (len(a.received), len(b.received)) == (1, 1)
        assert run.metric("upstream_attempts_total", model="toy", reason=outcome) == 1
        assert run.request_lines[0]["retried_for"] == [outcome]


@pytest.mark.parametrize(
    "mode",
    [
        Mode.INVALID_JSON,
        Mode.SCHEMA_VIOLATION,
        Mode.TRAILING_TEXT,
        Mode.EMPTY,
        Mode.ALWAYS_REJECT,
        Mode.DEAD,
        Mode.OVERLOADED,
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_another_replica_cures_what_one_replica_got_wrong(mode: Mode, stream: bool) -> None:
    async with FakeEngine(mode) as bad, FakeEngine() as good, gateway(pool_of(bad, good)) as run:
        answer = await run.ask(structured(stream=stream))
        assert answer.status_code == 200
        # A wrong stream is given out as it comes: only what fails before its first part is cured.
        early = mode in (Mode.EMPTY, Mode.ALWAYS_REJECT, Mode.DEAD, Mode.OVERLOADED)
        if stream and not early and answer.headers["x-structuredllm-replica"] == "r0":
            assert run.request_lines[0]["error_code"] == "structured_output_failed"
            return
        assert answer.headers["x-structuredllm-attempts"] == "2"
        assert answer.headers["x-structuredllm-replica"] == "r1"
        assert run.request_lines[0]["outcome"] == "ok"
        assert good.requests[0] == bad.requests[0] if bad.requests else True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_connection_is_tried_anew_on_the_only_replica(stream: bool) -> None:
    # What an idle connection looks like that the engine closes in the moment in which it is used again.
    script = FakeScript(per_request=(Mode.DEAD,))
    async with FakeEngine(script=script) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(structured(stream=stream))
        assert answer.status_code == 200
        assert answer.headers["x-structuredllm-attempts"] == "2"
        assert run.request_lines[0]["retried_for"] == ["connect_error"]


async def test_a_wrong_answer_is_not_asked_for_again_on_the_same_replica() -> None:
    async with FakeEngine(Mode.INVALID_JSON) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(structured())
        assert answer.status_code == 502
        assert len(engine.received) == 1


async def test_grammar_reject_is_counted_by_replica_and_on_the_request() -> None:
    async with (
        FakeEngine(Mode.ALWAYS_REJECT) as bad,
        FakeEngine() as good,
        gateway(pool_of(bad, good)) as run,
    ):
        answer = await run.ask(structured())
        assert answer.headers["x-structuredllm-fsm-errors"] == "1"
        assert run.request_lines[0]["fsm_errors"] == 1
        labels = {"schema": run.request_lines[0]["schema"][:16], "backend": "auto"}
        assert run.metric("fsm_errors_total", model="toy", replica="r0", **labels) == 1
        assert run.metric("fsm_errors_total", model="toy", replica="r1", **labels) is None


async def test_the_same_engine_error_on_an_unstructured_request_is_no_grammar_reject() -> None:
    async with FakeEngine(Mode.UNSTRUCTURED_500) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(plain())
        assert answer.status_code == 500
        assert answer.headers["x-structuredllm-outcome"] == "upstream_5xx"
        assert answer.json()["error"]["code"] == "upstream_5xx"


async def test_violation_names_its_json_pointer() -> None:
    async with FakeEngine(Mode.SCHEMA_VIOLATION) as engine, gateway(pool_of(engine)) as run:
        schema = {"type": "object", "properties": {"a/b": {"type": "integer"}}, "required": ["a/b"]}
        answer = await run.ask(structured(schema))
        assert answer.status_code == 502
        assert answer.json()["error"]["param"] in ("", "/a~1b")
        assert "schema_violation" in answer.json()["error"]["message"]


@pytest.mark.parametrize("mode", [Mode.INVALID_JSON, Mode.SCHEMA_VIOLATION, Mode.EMPTY])
async def test_observe_passes_a_wrong_answer_once_and_names_it(mode: Mode) -> None:
    async with (
        FakeEngine(mode) as a,
        FakeEngine() as b,
        gateway(pool_of(a, b, mode=ValidationMode.OBSERVE)) as run,
    ):
        answer = await run.ask(structured())
        assert answer.status_code == 200
        assert answer.headers["x-structuredllm-outcome"] in ("not_json", "schema_violation", "empty")
        assert b.received == []


async def test_off_does_not_look() -> None:
    async with (
        FakeEngine(Mode.INVALID_JSON) as engine,
        gateway(pool_of(engine, mode=ValidationMode.OFF)) as run,
    ):
        answer = await run.ask(structured())
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, "plain")


async def test_truncated_answer_passes_named_and_is_not_tried_again() -> None:
    async with FakeEngine(Mode.TRUNCATED) as a, FakeEngine() as b, gateway(pool_of(a, b)) as run:
        answer = await run.ask(structured())
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, "truncated")
        assert b.received == []


async def test_engine_refusal_is_passed_in_openai_shape_and_not_tried_again() -> None:
    async with FakeEngine(Mode.BAD_REQUEST) as a, FakeEngine() as b, gateway(pool_of(a, b)) as run:
        answer = await run.ask(plain())
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["message"] == "this fake engine refuses every request"
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str)
        assert answer.headers["x-structuredllm-outcome"] == "upstream_4xx"
        assert b.received == []


async def test_engine_overload_keeps_its_retry_after() -> None:
    async with FakeEngine(Mode.OVERLOADED) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(plain())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["type"] == "service_unavailable_error"


async def test_dead_replica_alone_is_a_502() -> None:
    async with FakeEngine(Mode.DEAD) as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(plain())
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (502, "connect_error")
        assert answer.json()["error"]["code"] == "upstream_unreachable"
        assert run.request_lines[0]["retried_for"] == ["connect_error"]


async def test_hanging_replica_is_left_at_the_deadline_of_the_try() -> None:
    settings = settings_with(upstream={"try_timeout_seconds": 0.2})
    async with FakeEngine(Mode.HANG) as bad, FakeEngine() as good:
        async with gateway(pool_of(bad, good), settings) as run:
            answer = await run.ask(structured())
            assert (answer.status_code, answer.headers["x-structuredllm-attempts"]) == (200, "2")
            assert bad.disconnects == 1
        async with gateway(pool_of(bad), settings) as run:
            answer = await run.ask(structured())
            assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (504, "timeout")


async def test_total_deadline_ends_the_tries() -> None:
    settings = settings_with(upstream={"try_timeout_seconds": 5, "total_timeout_seconds": 0.2})
    async with FakeEngine(Mode.HANG) as a, FakeEngine() as b, gateway(pool_of(a, b), settings) as run:
        answer = await run.ask(plain())
        assert (answer.status_code, answer.headers["x-structuredllm-attempts"]) == (504, "1")


async def test_client_that_leaves_cancels_the_engine() -> None:
    async with FakeEngine(Mode.HANG) as engine, gateway(pool_of(engine)) as run:
        asking = asyncio.create_task(run.ask(plain()))
        await until(lambda: engine.in_flight)
        asking.cancel()
        await until(lambda: not (engine.in_flight))
        assert engine.disconnects == 1
        await until(lambda: run.request_lines)
        assert run.request_lines[0]["outcome"] == "client_closed"
        labels = {"model": "toy", "route": "chat", "code": "499", "outcome": "client_closed"}
        assert run.metric("requests_total", **labels) == 1


async def test_requests_above_the_limit_are_shed() -> None:
    settings = settings_with(limits={"max_inflight_requests": 1, "retry_after_seconds": 7})
    async with FakeEngine(Mode.HANG) as engine, gateway(pool_of(engine), settings) as run:
        first = asyncio.create_task(run.ask(plain()))
        await until(lambda: engine.in_flight)
        answer = await run.ask(plain())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.headers["x-structuredllm-outcome"] == "overloaded"
        first.cancel()


async def test_no_serving_replica_is_a_503_with_retry_after() -> None:
    gone = tuple(
        Endpoint(state.value, "http://127.0.0.1:1", state)
        for state in (EndpointState.GATED, EndpointState.TERMINATING)
    )
    view = Snapshot({"toy": ModelPool("toy", ValidationMode.ENFORCE, gone)}, synced=True)
    settings = settings_with(warmup={"max_wait_seconds": 0})
    async with gateway(FixedEndpoints(view), settings) as run:
        answer = await run.ask(plain())
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_serving_replica"
        assert int(answer.headers["retry-after"]) > 0
        assert run.metric("endpoints", model="toy", state="gated") == 1
        assert run.metric("endpoints", model="toy", state="terminating") == 1
        assert run.metric("endpoints", model="toy", state="serving") == 0


async def test_terminating_replica_gets_nothing_new() -> None:
    async with FakeEngine() as a, FakeEngine() as b:
        source = pool_of(a, b)
        async with gateway(source) as run:
            await run.ask(plain())
            pool = source.view.pools["toy"]
            leaving = Endpoint("r0", a.url, EndpointState.TERMINATING)
            changed = ModelPool("toy", pool.validation, (leaving, pool.endpoints[1]))
            source.view = Snapshot({"toy": changed}, synced=True)
            answer = await run.ask(plain())
            assert answer.headers["x-structuredllm-replica"] == "r1"
            assert (len(a.received), len(b.received)) == (1, 1)


async def test_load_is_spread_by_outstanding_requests() -> None:
    script = FakeScript(delay_seconds=0.15)
    async with (
        FakeEngine(Mode.SLOW, script=script) as a,
        FakeEngine(Mode.SLOW, script=script) as b,
        gateway(pool_of(a, b)) as run,
    ):
        await asyncio.gather(*(run.ask(plain()) for _ in range(8)))
        assert (len(a.received), len(b.received)) == (4, 4)


async def test_every_choice_is_judged() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        answer = await run.ask(structured(n=3))
        assert (len(answer.json()["choices"]), answer.headers["x-structuredllm-outcome"]) == (3, "ok")


async def test_one_line_per_request_without_prompts_or_answers() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        await run.ask(structured())
        assert len(run.request_lines) == 1
        line = run.request_lines[0]
        assert line["outcome"] == "ok"
        assert line["structured"] is True
        assert len(line["schema"]) == 16
        assert "secret" not in json.dumps(line)
