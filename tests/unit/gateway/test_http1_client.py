"""The raw client, over real sockets: what passes, connection use, cancellation, the one repeated request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.errors import UpstreamConnectError
from structuredllm_gateway.upstream.http1 import Http1Client
from structuredllm_gateway.upstream.http1_connection import Http1Connection, UntouchedError
from structuredllm_gateway.upstream.http1_response import Http1Response
from tests.unit.gateway.raw_server import Seen, client, raw_server, read_request
from tests.unit.gateway.support import until

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\ntrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK


async def ask(made: Http1Client, url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await made.post(url, body=body, headers={"content-type": "application/json"})
    try:
        return response.status, b"".join([chunk async for chunk in response.chunks()])
    finally:
        await response.aclose()


async def test_request_is_written_once_with_its_length_and_target() -> None:
    async with raw_server([OK]) as seen, client() as made:
        response = await made.post(seen.url + "/y?z=1", body=b'{"a":1}', headers={"x-request-id": "r"})
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        assert [chunk async for chunk in response.chunks()] == [b"{}"]
        head = seen.requests[0].decode()
        authority = seen.url.split("/")[2]
        assert head.startswith(f"POST /x/y?z=1 HTTP/1.1\r\nhost: {authority}\r\n")
        assert "\r\nx-request-id: r\r\n" in head
        assert head.endswith('\r\ncontent-length: 7\r\n\r\n{"a":1}')


@pytest.mark.parametrize("answer", [OK, CHUNKED, INTERIM])
async def test_connection_is_used_again(answer: bytes) -> None:
    async with raw_server([answer]) as seen, client() as made:
        for _ in range(3):
            assert (await ask(made, seen.url))[0] == 200
        assert (seen.connections, len(seen.requests), made.pool.open) == (1, 3, 1)


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",  # bytes after the answer
        OK + b"garbage",
    ],
)
async def test_connection_is_closed_where_it_must_not_be_used_again(answer: bytes) -> None:
    async with raw_server([answer]) as seen, client() as made:
        assert await ask(made, seen.url) == (200, b"{}")
        assert await ask(made, seen.url) == (200, b"{}")
        assert (seen.connections, made.pool.open) == (2, 0)


async def test_bytes_between_two_answers_close_the_connection() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader, Seen())
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await reader.read()

    async with raw_server(handle) as seen, client() as made:
        assert await ask(made, seen.url) == (200, b"{}")
        await until(lambda: made.pool.open == 0)


async def test_body_without_a_length_ends_with_the_connection() -> None:
    async with raw_server([b"HTTP/1.1 200 OK\r\n\r\nuntil the end"], closes=True) as seen, client() as made:
        assert await ask(made, seen.url) == (200, b"until the end")
        assert made.pool.open == 0


async def test_idle_connections_are_closed_before_the_engine_closes_them() -> None:
    async with raw_server([OK]) as seen, client(keepalive_seconds=0.05) as made:
        await ask(made, seen.url)
        assert seen.open == 1
        await until(lambda: not seen.open)
        assert made.pool.open == 0


async def test_cancelled_before_the_head_the_connection_closes_at_once() -> None:
    async with raw_server(_never) as seen, client() as made:
        asking = asyncio.create_task(ask(made, seen.url))
        await until(lambda: seen.open)
        began = time.monotonic()
        asking.cancel()
        await until(lambda: not seen.open)
        assert time.monotonic() - began < 0.1
        assert made.pool.open == 0


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_closed_inside_a_body_the_connection_closes_at_once() -> None:
    begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"
    async with raw_server([begun]) as seen, client() as made:
        response = await made.post(seen.url, body=b"", headers={})
        assert await anext(response.chunks()) == b"ab"
        await response.aclose()
        await until(lambda: not seen.open)
        assert made.pool.open == 0


async def test_cancelled_with_the_head_just_in_no_other_request_is_hurt() -> None:
    async with raw_server([OK]) as seen, client() as made:
        response = await made.post(seen.url, body=b"", headers={})
        # Whole and free again: what is done with the old answer must not touch the connection.
        second = asyncio.create_task(ask(made, seen.url))
        await asyncio.sleep(0)
        await response.aclose()
        assert await second == (200, b"{}")
        assert seen.connections == 1


async def test_slow_reader_stops_the_engine() -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader, Seen())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 64000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(64000))
            await writer.drain()
            sent += 64000

    async with raw_server(handle) as seen, client() as made:
        response = await made.post(seen.url, body=b"", headers={})
        last = -1
        while sent != last:
            last = sent
            await asyncio.sleep(0.05)
        assert sent < 32_000_000
        total = 0
        async for chunk in response.chunks():
            total += len(chunk)
        assert total == 64_000_000


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_engine_that_closed_before_the_request_came_is_asked_again(run: Callable[[Any], None]) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()
    requests = []

    def serve() -> None:
        for number in range(2):
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(65536))
                connection.sendall(OK)
                if number == 0:
                    connection.shutdown(socket.SHUT_WR)
            closed.set()

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"

    async def check() -> None:
        async with client() as made:
            # The loop stands still while the engine closes, so the close is there but not seen.
            response = await made.post(url, body=b"first", headers={})
            assert closed.wait(2)
            time.sleep(0.02)  # noqa: ASYNC251 - the race that is tested
            assert await ask(made, url, b"second") == (200, b"{}")
            await response.aclose()

    run(check())
    thread.join()
    server.close()
    assert [request[-6:] for request in requests] == [b"\nfirst", b"second"]


async def test_request_that_the_engine_has_taken_is_never_sent_again() -> None:
    taken: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = Seen()
        await read_request(reader, seen)
        writer.write(OK)
        taken.append(await read_request(reader, seen))

    async with raw_server(handle) as seen, client() as made:
        await ask(made, seen.url)
        with pytest.raises(UpstreamConnectError) as raised:
            await ask(made, seen.url)
        assert not isinstance(raised.value, UntouchedError)
        assert (len(taken), seen.connections) == (1, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_both_families(host: str) -> None:
    try:
        async with raw_server([OK], host=host) as seen, client() as made:
            assert await ask(made, seen.url) == (200, b"{}")
    except OSError:
        pytest.skip(f"no {host} here")


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http:///x", "http://x:99999/", "http://x/a b", "http://x/\r\ny:z"]
)
async def test_url_that_cannot_be_used_is_named(url: str) -> None:
    async with client() as made:
        with pytest.raises(UpstreamConnectError, match="cannot be used"):
            await made.post(url, body=b"", headers={})


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0"])
async def test_line_ends_in_header_fields_are_refused(value: str) -> None:
    async with raw_server([OK]) as seen, client() as made:
        with pytest.raises(ValueError, match="line end"):
            await made.post(seen.url, body=b"", headers={"x": value})
        assert seen.connections == 0


class _Transport(asyncio.Transport):
    """Takes what is written and is told what became of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


def _connection(freed: list[Http1Connection]) -> tuple[Http1Connection, asyncio.Future[Http1Response]]:
    made = Http1Connection(
        asyncio.get_running_loop(),
        max_head_bytes=4096,
        silence_seconds=60,
        on_free=freed.append,
        on_closed=lambda _: None,
    )
    made.connection_made(_Transport())
    return made, made.send(b"POST / HTTP/1.1\r\n\r\n", b"")


async def _body(response: Http1Response) -> bytes:
    return b"".join([chunk async for chunk in response.chunks()])


@pytest.mark.parametrize(("wire", "body"), [(OK, b"{}"), (CHUNKED, b"hello world"), (INTERIM, b"{}")])
async def test_answer_is_the_same_cut_at_any_byte(wire: bytes, body: bytes) -> None:
    for cut in range(len(wire) + 1):
        freed: list[Http1Connection] = []
        connection, head = _connection(freed)
        for part in (wire[:cut], wire[cut:]):
            if part:
                connection.data_received(part)
        assert await _body(head.result()) == body
        assert freed == [connection]
        connection.abort()


@pytest.mark.parametrize("wire", [OK, CHUNKED, INTERIM])
async def test_answer_that_ends_early_at_any_byte_is_never_whole(wire: bytes) -> None:
    for cut in range(len(wire)):
        freed: list[Http1Connection] = []
        connection, head = _connection(freed)
        if cut:
            connection.data_received(wire[:cut])
        connection.connection_lost(None)
        assert freed == []
        with pytest.raises(UpstreamConnectError):
            await _body(await head)


async def test_any_body_in_any_framing_and_cut_arrives_as_it_was() -> None:
    @settings(max_examples=100, deadline=None)
    @given(
        body=st.binary(max_size=300),
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
        cuts=st.lists(st.integers(1, 30), min_size=1, max_size=40),
        chunked=st.booleans(),
    )
    def check(body: bytes, sizes: list[int], cuts: list[int], chunked: bool) -> None:
        freed: list[Http1Connection] = []
        connection, head = _connection(freed)
        wire = _chunked(body, sizes) if chunked else b"content-length: %d\r\n\r\n" % len(body) + body
        wire, at, turn = b"HTTP/1.1 200 OK\r\n" + wire, 0, 0
        while at < len(wire):
            size = cuts[turn % len(cuts)]
            connection.data_received(wire[at : at + size])
            at, turn = at + size, turn + 1
        assert _at_once(_body(head.result())) == body
        assert freed == [connection]
        connection.abort()

    check()


def _at_once(coroutine: Coroutine[None, None, bytes]) -> bytes:
    """Run what must not wait, because all that it needs is there."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return cast(bytes, result.value)
    raise AssertionError("it waits")


def _chunked(body: bytes, sizes: list[int]) -> bytes:
    parts, at, turn = [b"transfer-encoding: chunked\r\n\r\n"], 0, 0
    while at < len(body):
        part = body[at : at + sizes[turn % len(sizes)]]
        parts.append(b"%x\r\n" % len(part) + part + b"\r\n")
        at, turn = at + len(part), turn + 1
    return b"".join([*parts, b"0\r\n\r\n"])


async def test_any_bytes_are_an_answer_or_an_error() -> None:
    @settings(max_examples=100, deadline=None)
    @given(parts=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8))
    def check(parts: list[bytes]) -> None:
        connection, head = _connection([])
        for part in parts:
            connection.data_received(part)
        connection.connection_lost(None)
        assert head.done()
        if head.exception() is None:
            with contextlib.suppress(UpstreamConnectError):
                _at_once(_body(head.result()))
        assert connection.closed

    check()
