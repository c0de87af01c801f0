"""Requests that a connection answers without ASGI: which those are, and that nobody can tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from structuredllm_gateway.app import GatewayApp
from structuredllm_gateway.server.direct import DirectCall
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript
from tests.unit.gateway.support import Running, gateway, plain, pool_of, settings_with, structured, until

PATH = "/v1/chat/completions"


class _Watched:
    """A gateway whose requests that went by ASGI are counted."""

    def __init__(self, run: Running, port: int) -> None:
        self.run = run
        self.port = port
        self.by_asgi = 0
        app = cast(GatewayApp, run.app)
        inner = app.relayed[PATH]

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.by_asgi += 1
            await inner(scope, receive, send)

        app.relayed = {**app.relayed, PATH: counted}

    async def ask(self, *parts: bytes, pause: float = 0.02) -> tuple[int, dict[str, str], bytes]:
        """Send bytes part by part on a new connection; return status, headers and body of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause if len(parts) > 1 else 0)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        while head.startswith("HTTP/1.1 100"):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return int(first.split(" ")[1]), headers, body


@asynccontextmanager
async def _watched(
    script: FakeScript | None = None, **groups: Any
) -> AsyncIterator[tuple[_Watched, FakeEngine]]:
    async with FakeEngine(script=script) as engine, gateway(pool_of(engine), settings_with(**groups)) as run:
        yield _Watched(run, int(run.url.rsplit(":", 1)[1])), engine


def _request(body: dict[str, Any], *fields: str, version: str = "1.1", path: str = PATH) -> bytes:
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(data)}", *fields]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


async def test_a_request_that_comes_whole_goes_no_further_than_its_connection() -> None:
    async with _watched() as (watched, engine):
        status, headers, body = await watched.ask(_request(structured(), "x-request-id: mine"))
        assert (status, watched.by_asgi, len(engine.received)) == (200, 0, 1)
        assert headers["x-request-id"] == "mine"
        assert headers["x-structuredllm-outcome"] == "ok"
        assert json.loads(body)["choices"]


async def test_the_answer_is_the_one_that_asgi_gives() -> None:
    async with _watched() as (watched, _):
        bodies: list[dict[str, Any]] = [
            structured(),
            plain(stream=True),
            {"model": "nobody"},
            {"messages": []},
        ]
        for body in bodies:
            whole = _request(body, "x-request-id: mine")
            direct = await watched.ask(whole)
            before = watched.by_asgi
            by_asgi = await watched.ask(whole[:-5], whole[-5:])
            assert watched.by_asgi == before + 1
            for answer in (direct, by_asgi):
                answer[1].pop("date")
            assert direct[:2] == by_asgi[:2]
            lines = watched.run.request_lines[-2:]
            for name in ("status", "outcome", "error_code", "model", "attempts"):
                assert lines[0][name] == lines[1][name]


@pytest.mark.parametrize(
    "whole",
    [
        _request(plain(), "expect: 100-continue"),
        _request(plain(), version="1.0"),
        _request(plain(), path=PATH + "?a=b"),
        # With an offer there is no body; what comes after the head is not HTTP/1.1 any more.
        _request(plain(), "connection: upgrade", "upgrade: h2c"),
    ],
)
async def test_what_is_unusual_goes_by_asgi(whole: bytes) -> None:
    async with _watched() as (watched, _):
        assert (await watched.ask(whole))[0] == (400 if b"h2c" in whole else 200)
        assert watched.by_asgi == 1


async def test_a_body_that_is_too_large_is_refused_as_ever() -> None:
    async with _watched(limits={"max_body_bytes": 1024}) as (watched, engine):
        status, headers, _ = await watched.ask(_request(plain(user="x" * 1024)))
        assert (status, headers["connection"], engine.received) == (413, "close", [])
        chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n" % 1500 + b" " * 1500 + b"\r\n0\r\n\r\n"
        assert (await watched.ask(chunked + chunk))[0] == 413


async def test_a_body_in_chunks_that_is_here_whole_is_joined() -> None:
    async with _watched() as (watched, engine):
        data = json.dumps(plain()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:9], data[9:]))
        assert (await watched.ask(head + parts + b"0\r\n\r\n"))[0] == 200
        assert (watched.by_asgi, engine.received[0].body) == (0, plain())


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with _watched() as (watched, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", watched.port)
        writer.write(b"".join(_request(plain(), f"x-request-id: r{number}") for number in range(3)))
        for number in range(3):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert f"x-request-id: r{number}\r\n" in head
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            await reader.readexactly(length)
        writer.close()


async def test_a_client_that_leaves_cancels_its_request() -> None:
    async with _watched(FakeScript(hold_until_in_flight=2)) as (watched, engine):
        _, writer = await asyncio.open_connection("127.0.0.1", watched.port)
        writer.write(_request(plain()))
        await until(lambda: engine.received)
        writer.close()
        await until(lambda: watched.run.request_lines)
        assert watched.run.request_lines[0]["outcome"] == "client_closed"
        assert watched.by_asgi == 0


async def test_a_client_that_left_at_once_is_noted_and_no_engine_is_asked() -> None:
    async with _watched() as (watched, engine):
        call, transport, _ = _call()
        route = cast(GatewayApp, watched.run.app).direct[PATH.encode()]
        call.task = asyncio.create_task(call.run(route, [], json.dumps(plain()).encode()))
        call.disconnected = True
        call.message_event.set()
        await call.task
        assert (call.gone, transport.writes, engine.received) == (True, [], [])
        assert watched.run.request_lines[0]["outcome"] == "client_closed"


async def test_an_idle_connection_is_closed_after_a_direct_answer() -> None:
    async with _watched(server={"keepalive_seconds": 1}) as (watched, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", watched.port)
        writer.write(_request(plain()))
        async with asyncio.timeout(10):
            await reader.read()
        assert watched.by_asgi == 0
        assert watched.run.metric("connections_ended_total", reason="idle") == 1
        writer.close()


class _Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def _call(*, keep_alive: bool = True) -> tuple[DirectCall, _Transport, list[bool]]:
    transport, done = _Transport(), list[bool]()
    given = cast(asyncio.Transport, transport)
    defaults = [(b"date", b"now")]
    call = DirectCall(
        given, FlowControl(given), defaults, keep_alive=keep_alive, on_complete=lambda: done.append(True)
    )
    return call, transport, done


async def test_a_whole_answer_is_one_write() -> None:
    call, transport, done = _call()
    await call.start(200, {"content-length": "4"})
    await call.write(b"body")
    await call.end()
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 4\r\n\r\nbody"]
    assert (done, transport.closed, call.response_complete) == ([True], False, True)


async def test_an_answer_without_a_length_is_chunked_and_may_end_its_connection() -> None:
    call, transport, _ = _call(keep_alive=False)
    await call.start(200, {"content-type": "text/event-stream"})
    await call.write(b"data: 1\n\n")
    await call.write(b"")
    await call.end()
    head, _, body = b"".join(transport.writes).partition(b"\r\n\r\n")
    assert head.endswith(b"transfer-encoding: chunked\r\nconnection: close")
    assert (body, transport.closed) == (b"9\r\ndata: 1\n\n\r\n0\r\n\r\n", True)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "\x00", "\x7f"])
async def test_a_field_with_a_control_character_is_never_written(value: str) -> None:
    call, transport, _ = _call()
    with pytest.raises(ValueError, match="control character"):
        await call.start(200, {"x-structuredllm-warning": value})
    assert (transport.writes, call.started) == ([], False)


async def test_a_length_that_is_not_kept_is_an_error() -> None:
    for data in (b"longer", b"sho"):
        call, _, _ = _call()
        await call.start(200, {"content-length": "4"})
        with pytest.raises(ValueError, match="than its declared length"):
            await _finished(call, data)


async def _finished(call: DirectCall, data: bytes) -> None:
    await call.write(data)
    await call.end()


async def test_a_route_that_fails_is_a_500_and_the_end_of_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def answer(self, *_: object) -> None:
            raise RuntimeError("broken")

    call, transport, _ = _call()
    await call.run(cast(Any, Broken()), [], b"")
    assert transport.writes[0].startswith(b"HTTP/1.1 500 ")
    assert (b"connection: close" in transport.writes[0], transport.closed) == (True, True)
    assert "broken" in caplog.text


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    call, transport, done = _call()
    call.disconnected = True
    await call.start(200, {"content-length": "1"})
    await call.write(b"x")
    assert (transport.writes, done) == ([], [])
