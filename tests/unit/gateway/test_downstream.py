"""The client's side of a request: bodies in any number of messages, limits, and the client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from structuredllm_gateway.admission.limits import ClientClosedError
from structuredllm_gateway.errors import BodyTimeoutError, BodyTooLargeError
from structuredllm_gateway.routes.downstream import Downstream, HeaderMap
from structuredllm_gateway.routes.response import AsgiSink
from tests.unit.gateway.raw_server import raw_server
from tests.unit.gateway.support import gateway, plain, pool_of, until

GONE = {"type": "http.disconnect"}


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


class Channel:
    """A receive channel: messages that are there, then those that are put in."""

    def __init__(self, *messages: dict[str, Any], waits: bool = False) -> None:
        self._messages = list(messages)
        self._waits = waits
        self.later: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __call__(self) -> dict[str, Any]:
        if self._messages:
            if self._waits:
                await asyncio.sleep(0.001)
            return self._messages.pop(0)
        return await self.later.get()


def downstream(channel: Channel, headers: Sequence[tuple[bytes, bytes]] = ()) -> Downstream:
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    return Downstream(channel, HeaderMap(list(headers)), task, max_bytes=10, timeout_seconds=0.05)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("messages", [[part(b"abc")], [part(b"a", True), part(b"", True), part(b"bc")]])
async def test_body_is_read_in_any_number_of_messages(messages: list[dict[str, Any]], waits: bool) -> None:
    reader = downstream(Channel(*messages, waits=waits))
    assert await reader.read() == b"abc"
    reader.stop()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("messages", [[part(b"x" * 11)], [part(b"x" * 6, True), part(b"x" * 6, True)]])
async def test_body_above_the_limit_is_not_read_on(messages: list[dict[str, Any]], waits: bool) -> None:
    with pytest.raises(BodyTooLargeError):
        await downstream(Channel(*messages, waits=waits)).read()


async def test_declared_length_above_the_limit_is_not_read_at_all() -> None:
    async def never() -> Any:
        raise AssertionError

    reader = Downstream(
        never,
        HeaderMap([(b"content-length", b"11")]),
        cast("asyncio.Task[Any]", asyncio.current_task()),
        max_bytes=10,
        timeout_seconds=1,
    )
    with pytest.raises(BodyTooLargeError):
        await reader.read()


@pytest.mark.parametrize("messages", [[], [part(b"a", True)]])
async def test_body_that_does_not_come_is_a_timeout(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BodyTimeoutError):
        await downstream(Channel(*messages)).read()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("messages", [[GONE], [part(b"a", True), GONE]])
async def test_client_that_goes_before_its_body_is_whole(messages: list[dict[str, Any]], waits: bool) -> None:
    with pytest.raises(ClientClosedError):
        await downstream(Channel(*messages, waits=waits)).read()


async def _working(channel: Channel, seen: list[Downstream]) -> None:
    reader = downstream(channel)
    seen.append(reader)
    await reader.read()
    await asyncio.Event().wait()


@pytest.mark.parametrize("before", [[], [part(b"more than was declared")]])
async def test_client_that_goes_later_cancels_the_work(before: list[dict[str, Any]]) -> None:
    channel, seen = Channel(part(b"")), list[Downstream]()
    task = asyncio.create_task(_working(channel, seen))
    for message in [*before, GONE]:
        await asyncio.sleep(0)
        assert not task.done()
        channel.later.put_nowait(message)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    assert seen[0].gone


async def test_what_is_stopped_does_not_cancel() -> None:
    channel = Channel(part(b""))
    reader = downstream(channel)
    await reader.read()
    reader.stop()
    channel.later.put_nowait(GONE)
    await asyncio.sleep(0.01)
    assert not reader.gone


async def test_answer_of_known_length_ends_with_its_last_byte() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for length in ({"content-length": "4"}, {}):
        sent.clear()
        sink = AsgiSink(send, downstream(Channel()))
        await sink.start(200, length)
        await sink.write(b"ab")
        await sink.write(b"cd")
        await sink.end()
        bodies = [(message["body"], message["more_body"]) for message in sent[1:]]
        whole = [(b"ab", True), (b"cd", False)] if length else [(b"ab", True), (b"cd", True), (b"", False)]
        assert bodies == whole


async def test_engine_that_leaves_its_stream_open_is_not_a_client_that_has_gone() -> None:
    data = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    parts = [b"%x\r\n" % len(text) + text + b"\r\n" for text in (data, b"data: [DONE]\n\n")]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with raw_server([b"".join([head, *parts])]) as seen, gateway(pool_of(seen.url[:-2])) as run:
        answer = await run.ask(plain(stream=True))
        assert answer.status_code == 200
        await until(lambda: run.request_lines)
        assert run.request_lines[0]["outcome"] == "plain"


def test_header_map_gives_the_first_of_two() -> None:
    headers = HeaderMap([(b"a", b"1"), (b"b", b"\xe9"), (b"a", b"2")])
    assert (headers["a"], headers["b"], headers.get("c"), "a" in headers) == ("1", "\xe9", None, True)
    assert (sorted(headers), len(headers)) == (["a", "b"], 2)
