"""The surface over real sockets: which routes there are, and what becomes of responses and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import openai
import pytest
from aiohttp import web

from structuredllm_gateway.openai.responses import ResponsesAssembler, choices_of_response
from structuredllm_gateway.upstream.endpoints import ValidationMode
from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.support import SCHEMA, Running, events_of, gateway, pool_of
from tests.unit.gateway.wire import Engine, event, event_stream, message, response, serving

_RIGHT = '{"name": "a", "age": 1}'
_PATH = "/v1/responses"


def _asked(**more: Any) -> dict[str, Any]:
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    return {"model": "toy", "input": "secret prompt", "text": text, **more}


async def test_only_the_listed_routes_are_relayed_or_answered() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine, model="org/toy")) as run:
        listed = (await run.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["org/toy"]
        for path in ("org/toy", "org%2Ftoy"):
            assert (await run.http.get(f"/v1/models/{path}")).json()["id"] == "org/toy"
        lost = await run.http.get("/v1/models/nobody")
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "model_not_found")
        for method, path, status in [
            ("POST", "/v1/load_lora_adapter", 404),
            ("POST", "/sleep", 404),
            ("POST", "/collective_rpc", 404),
            ("POST", "/tokenize", 404),
            ("POST", "/v1/audio/transcriptions", 404),
            ("GET", "/v1/responses/r", 404),
            ("POST", "/v1/responses/r/cancel", 404),
            ("POST", "/v1/chat/completions/", 404),
            ("POST", "//v1/chat/completions", 404),
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models/org/toy", 405),
            ("PUT", "/v1/embeddings", 405),
        ]:
            answer = await run.http.request(method, path, json={"model": "org/toy"})
            assert answer.status_code == status, path
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code", "request_id"}
            assert error["code"] == ("unknown_route" if status == 404 else "method_not_allowed")
        assert engine.received == []


async def test_embeddings_pass_as_they_are() -> None:
    body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "usage": {}}
    engine = Engine(body)
    async with serving(engine) as run:
        asked = {"model": "toy", "input": ["a"], "n": "x", "guided_json": {}, "response_format": 5}
        answer = await run.ask(asked, "/v1/embeddings")
        assert (answer.status_code, answer.json()) == (200, body)
        assert engine.got == [("/v1/embeddings", asked)]
        assert answer.headers["x-structuredllm-outcome"] == "plain"
        assert run.metric("requests_total", model="toy", route="embeddings", code="200", outcome="plain") == 1


@pytest.mark.parametrize("body", [{"error": {"message": "no", "type": "x", "code": 500}}, b""])
async def test_an_answer_that_is_none_does_not_pass_unread(body: Any) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body) if body == b"" else web.json_response(body)

    engine = Engine({})
    engine.answer = answer  # type: ignore[method-assign]
    async with serving(engine) as run:
        found = await run.ask({"model": "toy", "input": "a"}, "/v1/embeddings")
        assert (found.status_code, found.headers["x-structuredllm-outcome"]) == (502, "upstream_5xx")


_REASONED = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": _RIGHT}]}
_CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
_WHOLE: list[tuple[Mapping[str, Any], str]] = [
    (response(message(_RIGHT)), "ok"),
    (response({"type": "reasoning", "summary": []}, message(_RIGHT)), "ok"),
    (response(message("{}")), "schema_violation"),
    (response(message("Sure: " + _RIGHT)), "trailing_or_leading_text"),
    (response(message(_RIGHT), message("and more")), "not_json"),
    (response(_REASONED), "in_reasoning"),
    (response(), "empty"),
    (response(_CALL), "empty"),
    (response(message('{"na'), status="incomplete"), "truncated"),
    (
        response(message('{"na'), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        "truncated",
    ),
    (
        response(message(""), status="incomplete", incomplete_details={"reason": "content_filter"}),
        "finish_abnormal",
    ),
    (response(message(_RIGHT), status="cancelled"), "finish_abnormal"),
    (response(message(_RIGHT), status="in_progress"), "finish_abnormal"),
    (response(status="failed", error={"code": "server_error", "message": "CUDA"}), "upstream_5xx"),
    ({"id": "r", "output": "x", "status": "completed"}, "upstream_5xx"),
    (response({"type": "message", "content": [{"type": "output_text", "text": 5}]}), "upstream_5xx"),
]


@pytest.mark.parametrize(("body", "outcome"), _WHOLE)
async def test_a_whole_response_is_judged(body: Mapping[str, Any], outcome: str) -> None:
    passes = outcome in ("ok", "truncated")
    async with serving(Engine(body)) as run:
        answer = await run.ask(_asked(), _PATH)
        assert answer.headers["x-structuredllm-outcome"] == outcome
        assert answer.status_code == (200 if passes else 502)


async def test_a_wrong_response_is_asked_for_again_on_another_replica() -> None:
    wrong, right = Engine(response(message("{}"))), Engine(response(message(_RIGHT)))
    async with serving(wrong, right) as run:
        answer = await run.ask(_asked(), _PATH)
        assert (answer.status_code, answer.headers["x-structuredllm-attempts"]) == (200, "2")
        assert answer.json() == response(message(_RIGHT))
        assert [path for path, _ in wrong.got + right.got] == [_PATH, _PATH]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_a_response_are_counted(stream: bool) -> None:
    used = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 5}
    whole = response(message(_RIGHT), usage={**used, "total_tokens": 12})
    async with serving(Engine(event_stream([_RIGHT], whole) if stream else whole)) as run:
        assert (await run.ask(_asked(stream=stream), _PATH)).status_code == 200
        assert run.metric("tokens_total", model="toy", kind="prompt") == 7
        assert run.metric("tokens_total", model="toy", kind="completion") == 5


async def test_function_calls_of_responses_are_judged() -> None:
    tool = {"type": "function", "name": "f", "strict": True, "parameters": SCHEMA}
    for arguments, outcome in ((_RIGHT, "ok"), ("{}", "schema_violation")):
        engine = Engine(response({**_CALL, "arguments": arguments}))
        async with serving(engine, mode=ValidationMode.OBSERVE) as run:
            answer = await run.ask({"model": "toy", "input": "x", "tools": [tool]}, _PATH)
            assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, outcome)


def _comment(outcome: str) -> str:
    return f": structuredllm outcome={outcome}"


async def test_a_good_stream_of_events_passes_as_it_is_with_the_verdict_at_its_end() -> None:
    events = event_stream(['{"name": "a"', ', "age": 1}'], response(message(_RIGHT)))
    async with serving(Engine(events)) as run:
        answer = await run.ask(_asked(stream=True), _PATH)
        assert answer.text.encode() == b"".join(events) + _comment("ok").encode() + b"\n\n"
        assert "[DONE]" not in answer.text


_CUT = response(message('{"na'), status="incomplete")
_FAILED = event("response.failed", response=response(status="failed", error={"message": "Grammar failed"}))
_STREAMS: list[tuple[list[bytes], str]] = [
    (event_stream(["{}"], response(message("{}"))), "schema_violation"),
    # The pieces are what a client shows, the last event what it parses: both must be right.
    (event_stream([_RIGHT[:-1]], response(message(_RIGHT))), "not_json"),
    (event_stream([_RIGHT], response(message("{}"))), "schema_violation"),
    (event_stream([], response(_REASONED)), "in_reasoning"),
    (event_stream(['{"na'], _CUT), "truncated"),
    (event_stream(['{"na'], None), "stream_aborted"),
    (event_stream([], None), "stream_empty"),
    ([], "stream_empty"),
    ([*event_stream(['{"na'], None), _FAILED], "grammar_rejected"),
    ([*event_stream([_RIGHT], None), event("error", message="CUDA", code="x", param=None)], "stream_error"),
    ([*event_stream([_RIGHT], None), b"data: {\n\n"], "stream_error"),
    ([*event_stream([_RIGHT], None), event("response.completed", response=5)], "stream_error"),
]


@pytest.mark.parametrize(("wire", "outcome"), _STREAMS)
@pytest.mark.parametrize("mode", [ValidationMode.ENFORCE, ValidationMode.OBSERVE])
async def test_a_wrong_stream_of_events_never_ends_as_completed(
    wire: list[bytes], outcome: str, mode: ValidationMode
) -> None:
    async with serving(Engine(wire), mode=mode) as run:
        answer = await run.ask(_asked(stream=True), _PATH)
        assert run.request_lines[0]["outcome"] == outcome
        passes = outcome == "truncated" or (
            mode is ValidationMode.OBSERVE and outcome in ("schema_violation", "not_json", "in_reasoning")
        )
        if answer.status_code == 200:
            assert ("response.completed" in answer.text) is passes
            last = events_of(answer.text)[-2:]
            assert last[-1] == _comment(outcome)
            assert last[0].startswith("event: error") is not passes
        else:
            assert answer.status_code == 502
            assert not passes


async def test_a_stream_of_events_that_nobody_asked_about_passes_unparsed() -> None:
    events = event_stream(["free ", "text"], response(message("free text")))
    async with serving(Engine(events)) as run:
        answer = await run.ask({"model": "toy", "input": "x", "stream": True}, _PATH)
        assert answer.text.encode() == b"".join(events) + _comment("plain").encode() + b"\n\n"


async def test_the_official_client_reads_responses_and_their_errors() -> None:
    good = Engine(response(message(_RIGHT)), event_stream([_RIGHT], response(message(_RIGHT))))
    asked: dict[str, Any] = _asked()
    async with serving(good) as run, _client(run) as client:
        whole = await client.responses.create(**asked)
        assert whole.output_text == _RIGHT
        kinds = [event.type async for event in await client.responses.create(**asked, stream=True)]
        assert kinds[-1] == "response.completed"
    # The first pieces are out before the end is known to be wrong.
    bad = Engine(event_stream(["{", "}"], response(message("{}"))), pause_seconds=0.02)
    async with serving(bad) as run, _client(run) as client:
        stream = await client.responses.create(**asked, stream=True)
        with pytest.raises(openai.APIError, match="not what the request asked for"):
            [event async for event in stream]


def _client(run: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=run.url + "/v1", api_key="x", max_retries=0)


def test_assembler_of_responses_keeps_parts_apart_and_is_bounded() -> None:
    assembler = ResponsesAssembler(4)
    piece: Callable[..., dict[str, Any]] = lambda text, **at: {  # noqa: E731
        "type": "response.output_text.delta",
        "delta": text,
        **at,
    }
    assert assembler.feed({"type": "response.created"}) is False
    assert assembler.feed(piece("ab", output_index=0)) is True
    assembler.feed(piece("c", output_index=1))
    assert [choice.text for choice in assembler.choices()] == ["ab", "c"]
    with pytest.raises(ValueError, match="longer than 4"):
        assembler.feed(piece("xx"))
    for wrong in ({}, piece(5), piece("x", output_index="a"), {"type": "response.completed"}):
        with pytest.raises(ValueError, match="stream"):
            ResponsesAssembler(4).feed(wrong)
    many = ResponsesAssembler(4)
    for index in range(128):
        many.feed(piece("", output_index=index))
    with pytest.raises(ValueError, match="parts"):
        many.feed(piece("", output_index=128))
    unkept = ResponsesAssembler(1, keeps=False)
    assert unkept.feed(piece("long text")) is True
    assert choices_of_response(b'{"output": [], "status": "completed"}')[0].text is None
