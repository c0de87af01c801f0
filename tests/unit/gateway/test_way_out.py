"""The way out, and clients that leave: a rolling restart loses nothing, an engine never works for nobody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from httpx_aiohttp import AiohttpTransport

from structuredllm_gateway.app import create_app
from structuredllm_gateway.server.process import GatewayServer
from structuredllm_gateway.settings import Settings
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import (
    FixedEndpoints,
    capturing_log,
    gateway,
    plain,
    pool_of,
    settings_with,
    until,
    upstream_client,
)

# A client that leaves is noticed in the same turn of the loop; the bound is for a busy machine.
_CANCEL_SECONDS = 0.1 * 5


@dataclass
class _Node:
    """One gateway behind a pretended load balancer."""

    server: GatewayServer
    serving: asyncio.Task[None]
    url: str


async def _start(source: FixedEndpoints, settings: Settings) -> _Node:
    app = create_app(
        settings, upstream=upstream_client(settings.upstream), endpoints=source, log=capturing_log([])
    )
    server = GatewayServer(app, settings.server, capturing_log([]), limits=settings.limits)
    started = asyncio.Event()
    serving = asyncio.create_task(server.serve(started.set))
    await asyncio.wait_for(started.wait(), 2)
    return _Node(server, serving, f"http://127.0.0.1:{server.api_port}")


class _Balancer:
    """What a Service does: asks /ready now and then, and sends new requests to who was ready last."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.nodes: list[_Node] = []
        self._http = http
        self._ready: list[_Node] = []
        self._next = 0

    async def look(self) -> None:
        ready = []
        for node in self.nodes:
            try:
                if (await self._http.get(node.url + "/ready")).status_code == 200:
                    ready.append(node)
            except httpx.HTTPError:
                pass
        self._ready = ready

    def pick(self) -> str:
        self._next += 1
        return self._ready[self._next % len(self._ready)].url


async def test_a_rolling_restart_under_load_fails_no_request() -> None:
    quick = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_delay_seconds": 0.3}
    settings = settings_with(server=quick)
    script = FakeScript(chunk_delay_seconds=0.01, chunk_chars=8)
    bad: list[str] = []
    done = {"whole": 0, "stream": 0}
    async with (
        FakeEngine(script=script) as engine,
        httpx.AsyncClient(transport=AiohttpTransport(verify=False), timeout=30.0) as http,
    ):
        balancer = _Balancer(http)
        source = pool_of(engine)
        balancer.nodes = [await _start(source, settings) for _ in range(2)]
        await balancer.look()
        over = asyncio.Event()

        async def client(kind: str) -> None:
            while not over.is_set():
                try:
                    body = plain(stream=kind == "stream")
                    answer = await http.post(balancer.pick() + "/v1/chat/completions", json=body)
                    whole = kind == "whole" or answer.text.endswith("data: [DONE]\n\n")
                    if answer.status_code != 200 or not whole:
                        bad.append(f"{kind} {answer.status_code} {answer.text[-80:]}")
                    done[kind] += 1
                except httpx.HTTPError as error:
                    bad.append(f"{kind} {error!r}")

        async def watch() -> None:
            while not over.is_set():
                await balancer.look()
                await asyncio.sleep(0.05)

        working = [asyncio.create_task(client(kind)) for kind in ("whole", "stream") * 4]
        working.append(asyncio.create_task(watch()))
        for index in (0, 1):
            old = balancer.nodes[index]
            balancer.nodes.append(await _start(source, settings))
            await asyncio.sleep(0.1)
            old.server.stop()
            async with asyncio.timeout(30):
                await old.serving
            balancer.nodes.remove(old)
            balancer.nodes.insert(index, balancer.nodes.pop())
        over.set()
        await asyncio.gather(*working)
        for node in balancer.nodes:
            node.server.stop()
            node.server.stop()
            await node.serving
    assert bad == []
    assert min(done.values()) > 10


async def test_an_answer_given_while_draining_closes_its_connection() -> None:
    quick = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_delay_seconds": 0.3}
    async with FakeEngine() as engine:
        node = await _start(pool_of(engine), settings_with(server=quick))
        async with httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http:
            before = await http.post(node.url + "/v1/chat/completions", json=plain())
            node.server.stop()
            after = await http.post(node.url + "/v1/chat/completions", json=plain())
        assert "connection" not in before.headers
        assert (after.status_code, after.headers["connection"]) == (200, "close")
        await node.serving


async def test_a_request_that_has_begun_to_arrive_when_the_port_closes_is_answered() -> None:
    quick = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_delay_seconds": 0.05}
    async with FakeEngine() as engine:
        node = await _start(pool_of(engine), settings_with(server=quick))
        reader, writer = await asyncio.open_connection("127.0.0.1", node.server.api_port)
        body = json.dumps(plain()).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        await asyncio.sleep(0.02)
        node.server.stop()
        await asyncio.sleep(0.3)
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
        await node.serving


async def test_what_does_not_end_is_cut_off_within_the_grace_period() -> None:
    server = {
        "host": "127.0.0.1",
        "port": 0,
        "metrics_port": 0,
        "drain_delay_seconds": 0,
        "graceful_timeout_seconds": 1,
    }
    async with FakeEngine(Mode.HANG) as engine:
        node = await _start(pool_of(engine), settings_with(server=server))
        reader, writer = await asyncio.open_connection("127.0.0.1", node.server.api_port)
        body = json.dumps(plain()).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        await until(lambda: engine.in_flight)
        began = time.monotonic()
        node.server.stop()
        async with asyncio.timeout(4):
            await node.serving
            assert b"200" not in await reader.read()
            await until(lambda: not engine.in_flight)
        assert time.monotonic() - began >= 0.9
        writer.close()


@asynccontextmanager
async def _asking(url: str, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request over a socket of its own, and leave without a word at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
    writer.write(body)
    try:
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("mode", "stream"), [(Mode.HANG, False), (Mode.HANG, True), (Mode.HANG_MID_STREAM, True)]
)
async def test_a_client_that_leaves_cancels_the_engine_at_once(mode: Mode, stream: bool) -> None:
    async with FakeEngine(mode) as engine, gateway(pool_of(engine)) as run:
        async with _asking(run.url, json.dumps(plain(stream=stream)).encode()) as reader:
            await until(lambda: engine.in_flight)
            if mode is Mode.HANG_MID_STREAM:
                await reader.readuntil(b"data: ")
        left = time.monotonic()
        while engine.in_flight:
            await asyncio.sleep(0.002)
            assert time.monotonic() - left < _CANCEL_SECONDS
        assert engine.disconnects == 1
        await until(lambda: run.request_lines)
        assert run.request_lines[0]["outcome"] == "client_closed"
