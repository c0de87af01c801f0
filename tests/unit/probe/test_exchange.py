"""The reading of answers, with a transport in memory; sockets are in test_burst."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from structuredllm_probe.classify import Answer, Failure
from structuredllm_probe.exchange import MAX_ANSWER_BYTES, Exchange
from structuredllm_probe.plan import PlannedRequest

_SSE = {"content-type": "text/event-stream"}


async def _answer(response: httpx.Response | Exception, *, streamed: bool) -> Answer:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "identity"
        if isinstance(response, Exception):
            raise response
        return response

    planned = PlannedRequest(0, {}, streamed, {"model": "toy"})
    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        return await Exchange(planned).run(client, "http://engine/v1/chat/completions", httpx.Timeout(5.0))


def _events(*payloads: object) -> bytes:
    return b"".join(
        b"data: " + (p if isinstance(p, bytes) else json.dumps(p).encode()) + b"\n\n" for p in payloads
    )


def _delta(content: str | None, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


async def test_a_stream_is_joined() -> None:
    body = _events(_delta(""), _delta("a"), _delta("b"), _delta(None, "stop"), {"choices": []}, b"[DONE]")
    answer = await _answer(httpx.Response(200, headers=_SSE, content=body), streamed=True)
    assert answer == Answer(200, "ab", "stop")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (_events(_delta("a", "stop")), "without data: [DONE]"),
        (_events(b"{nope"), "not JSON"),
        (_events(b"[1]"), "not a JSON object"),
        (b"", "without data: [DONE]"),
    ],
)
async def test_broken_streams(body: bytes, detail: str) -> None:
    answer = await _answer(httpx.Response(200, headers=_SSE, content=body), streamed=True)
    assert answer.failure is Failure.BROKEN
    assert detail in answer.detail


async def test_an_error_event_is_kept() -> None:
    body = _events(_delta("{"), {"error": {"message": "boom", "code": 500}}, b"[DONE]")
    answer = await _answer(httpx.Response(200, headers=_SSE, content=body), streamed=True)
    assert answer.error == {"message": "boom", "code": 500}


async def test_a_server_that_ignores_stream_is_broken() -> None:
    answer = await _answer(httpx.Response(200, json={"choices": []}), streamed=True)
    assert answer.failure is Failure.BROKEN
    assert "application/json" in answer.detail


async def _endless() -> AsyncIterator[bytes]:
    sent = 0
    while True:
        assert sent < 4 * MAX_ANSWER_BYTES, "read far beyond the limit"
        sent += 65_536
        yield b": keep-alive\n" * 5_041


@pytest.mark.parametrize("streamed", [True, False])
async def test_endless_bodies_are_cut(streamed: bool) -> None:
    answer = await _answer(httpx.Response(200, headers=_SSE, content=_endless()), streamed=streamed)
    assert answer.failure is Failure.BROKEN
    assert str(MAX_ANSWER_BYTES) in answer.detail


@pytest.mark.parametrize(
    "body",
    [b"", b"hi", b"[]", b"{}", b'{"choices": []}', b'{"choices": [1]}', b'{"choices": [{"text": "x"}]}'],
)
async def test_odd_bodies_are_broken(body: bytes) -> None:
    answer = await _answer(httpx.Response(200, content=body), streamed=False)
    assert (answer.status, answer.failure) == (200, Failure.BROKEN)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"oops", "oops"),
        (b'{"error": "oops"}', "oops"),
        (b'{"error": {"message": "oops"}}', "oops"),
        (b"[]", "[]"),
    ],
)
async def test_error_bodies_of_all_shapes(body: bytes, message: str) -> None:
    answer = await _answer(httpx.Response(500, content=body), streamed=False)
    assert answer.error is not None
    assert answer.error["message"] == message


async def test_an_error_in_a_200_body_is_an_error() -> None:
    answer = await _answer(httpx.Response(200, json={"error": {"message": "oops"}}), streamed=False)
    assert answer.error == {"message": "oops"}


async def test_no_response_head_is_a_connect_failure() -> None:
    answer = await _answer(httpx.ConnectError("refused"), streamed=False)
    assert (answer.status, answer.failure) == (None, Failure.CONNECT)
    assert "refused" in answer.detail
