"""Client connections over real sockets: deadlines, caps, slow readers. The limits are short."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from structuredllm_gateway.server.bounds import Bounds, Connections
from structuredllm_gateway.server.process import LoopServer, protocol_of
from structuredllm_gateway.telemetry.connections import EndReason
from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.support import gateway, pool_of, settings_with, until

HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\n"
QUICK = Bounds(header_seconds=0.15, body_seconds=0.15, write_seconds=0.15, linger_seconds=0.1)


@dataclass
class _Server:
    port: int
    connections: Connections
    uvicorn: LoopServer
    release: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def ended(self, reason: EndReason) -> int:
        return self.connections.counts.ended[reason]


@asynccontextmanager
async def _serve(bounds: Bounds, keep_alive: int = 75) -> AsyncIterator[_Server]:
    """Run an app that echoes a body, floods at /flood, waits at /wait, answers without reading at /early."""
    running: _Server

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        size, path = 0, scope["path"]
        if path == "/wait":
            await running.release.wait()
        while path == "/echo":
            message = await receive()
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-size", b"%d" % size)]})
        for _ in range(1000 if path == "/flood" else 0):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    connections = Connections(bounds)
    server = LoopServer(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http=protocol_of(connections),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    running = _Server(server.port, connections, server)
    try:
        yield running
    finally:
        running.release.set()
        for writer in running.writers:
            writer.close()
        server.should_exit = True
        await serving


async def _open(server: _Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    server.writers.append(writer)
    return reader, writer


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return all until the server ends the connection, which it must within two seconds."""
    async with asyncio.timeout(2):
        parts = []
        try:
            while part := await reader.read(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def _error(answer: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    return error


@pytest.mark.parametrize("sent", [b"", b"POST /ec", HEAD, HEAD + b"x-a: b", b"\r\n"])
async def test_a_header_that_does_not_arrive_ends_the_connection(sent: bytes) -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(sent)
        answer = await _rest(reader)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert _error(answer)["code"] == "request_timeout"
        assert server.ended(EndReason.HEADER_TIMEOUT) == 1


@pytest.mark.parametrize("drip", [b"x-a: b\r\n", b"\r\n"])
async def test_dripping_does_not_buy_time(drip: bytes) -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        answer = asyncio.create_task(_rest(reader))
        if drip != b"\r\n":
            writer.write(HEAD)
        while not answer.done():
            writer.write(drip)
            await asyncio.wait((answer,), timeout=0.02)
        assert (await answer).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "sent", [HEAD + b"content-length: 10\r\n\r\nabc", HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab"]
)
async def test_a_body_that_does_not_arrive_ends_the_connection(sent: bytes) -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(sent)
        assert (await _rest(reader)).startswith(b"HTTP/1.1 408 ")
        assert server.ended(EndReason.BODY_TIMEOUT) == 1


async def test_a_body_that_nobody_reads_still_has_to_arrive() -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(HEAD.replace(b"echo", b"early") + b"content-length: 10\r\n\r\nabc")
        assert b"ok" in await _rest(reader)


async def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    async with _serve(Bounds(header_seconds=0.15), keep_alive=1) as server:
        reader, writer = await _open(server)
        for _ in range(3):
            writer.write(HEAD + b"content-length: 0\r\n\r\n")
            await reader.readuntil(b"ok\r\n0\r\n\r\n")
            # Longer than the header may take: between requests another limit holds.
            await asyncio.sleep(0.25)
        assert await _rest(reader) == b""
        assert server.ended(EndReason.IDLE) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 40_000,
        HEAD + b"x: " + b"a" * 40_000,
        HEAD + b"x: " + b"a" * 40_000 + b"\r\n\r\n",
        HEAD + b"".join(b"x-%d: a\r\n" % number for number in range(5000)) + b"\r\n",
        HEAD + b"x: " + b"a" * 4_000_000,
    ],
)
async def test_a_header_above_the_cap_is_a_431(head: bytes) -> None:
    async with _serve(Bounds(linger_seconds=0.2)) as server:
        reader, writer = await _open(server)
        writer.write(head)
        answer = await _rest(reader)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert _error(answer)["code"] == "header_too_large"
        assert server.ended(EndReason.HEADER_TOO_LARGE) == 1


async def test_a_header_below_the_cap_passes_whole_or_in_parts() -> None:
    async with _serve(Bounds()) as server:
        reader, writer = await _open(server)
        for pause in (False, True):
            writer.write(HEAD + b"x: " + b"a" * 15_000)
            if pause:
                await asyncio.sleep(0.02)
            writer.write(b"a" * 15_000 + b"\r\ncontent-length: 3\r\n\r\nabc")
            assert b"x-size: 3" in await reader.readuntil(b"ok\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"bad header: 1\r\n\r\n",
        HEAD + b"a: b\r\n folded\r\n\x00\r\n\r\n",
    ],
)
async def test_what_is_not_http_ends_with_a_400(sent: bytes) -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(sent)
        answer = await _rest(reader)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 "))
        assert _error(answer)["type"] == "invalid_request_error"


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), min_size=20, max_size=30))
async def test_any_bytes_end_their_connection_and_nothing_else(sent: list[tuple[bool, bytes]]) -> None:
    async def one(after_head: bool, data: bytes) -> bytes:
        reader, writer = await _open(server)
        writer.write((HEAD if after_head else b"") + data)
        return await _rest(reader)

    async with _serve(QUICK) as server:
        answers = await asyncio.gather(*(one(*item) for item in sent))
        assert all(answer.startswith(b"HTTP/1.1 ") for answer in answers)
        assert await _ask(server) == b"HTTP/1.1 200 OK"
        assert server.connections.counts.open == 0


async def _ask(server: _Server) -> bytes:
    reader, writer = await _open(server)
    writer.write(HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n")
    answer = await _rest(reader)
    writer.close()
    return answer.split(b"\r\n", 1)[0]


async def test_an_offer_to_upgrade_is_not_taken() -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert (await _rest(reader)).startswith(b"HTTP/1.1 200 ")


async def test_above_the_cap_the_connection_that_waits_longest_makes_room() -> None:
    async with _serve(Bounds(max_connections=2)) as server:
        busy = await _open(server)
        busy[1].write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        idle = await _open(server)
        await until(lambda: len(server.connections.waiting) == 1)
        assert await _ask(server) == b"HTTP/1.1 200 OK"
        assert await _rest(idle[0]) == b""
        assert server.ended(EndReason.EVICTED) == 1
        server.release.set()
        assert b"ok" in await busy[0].readuntil(b"ok")


async def test_above_the_cap_with_all_busy_a_new_one_is_told() -> None:
    async with _serve(Bounds(max_connections=1)) as server:
        reader, writer = await _open(server)
        writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: server.connections.counts.open and not server.connections.waiting)
        refused_reader, _ = await _open(server)
        answer = await _rest(refused_reader)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert server.ended(EndReason.REFUSED) == 1
        server.release.set()
        assert b"ok" in await reader.readuntil(b"ok")


async def test_a_client_that_does_not_read_is_held_back_and_then_dropped() -> None:
    async with _serve(QUICK) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", server.port))
        await loop.sock_sendall(slow, b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: server.ended(EndReason.WRITE_TIMEOUT))
        await until(lambda: server.connections.counts.open == 0)
        slow.close()


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    settings_ = settings_with(limits={"max_body_bytes": 2000})
    async with FakeEngine() as engine, gateway(pool_of(engine), settings_) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(run.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50000000\r\n\r\n")
        answer = asyncio.create_task(_rest(reader))
        for _ in range(200):
            writer.write(b"x" * 65536)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
        assert (await answer).startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(b"".join(HEAD + b"content-length: %d\r\n\r\n%s" % (n, b"x" * n) for n in (1, 2, 3)))
        for number in (1, 2, 3):
            assert b"x-size: %d" % number in await reader.readuntil(b"ok\r\n0\r\n\r\n")


async def test_a_pipelined_body_waits_as_long_as_the_answer_before_it() -> None:
    async with _serve(QUICK) as server:
        reader, writer = await _open(server)
        writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + b"content-length: 3\r\n\r\nab")
        await asyncio.sleep(0.4)
        assert server.ended(EndReason.BODY_TIMEOUT) == 0
        server.release.set()
        await reader.readuntil(b"ok\r\n0\r\n\r\n")
        writer.write(b"c")
        assert b"x-size: 3" in await reader.readuntil(b"ok\r\n0\r\n\r\n")
