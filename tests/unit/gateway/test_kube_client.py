"""Discovery through the official client over a real socket: what is asked, what a break does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from structuredllm_gateway.upstream import kubernetes
from structuredllm_gateway.upstream.endpoints import EndpointSource, ValidationMode
from tests.unit.gateway.kube_objects import pod, resource
from tests.unit.gateway.support import capturing_log, seeded, until


class FakeApiServer:
    """Lists and watches of the two kinds; events are pushed by the test."""

    def __init__(self) -> None:
        self.items: dict[str, list[Mapping[str, Any]]] = {"structuredllms": [resource("toy", {})], "pods": []}
        self.queues: dict[str, asyncio.Queue[Mapping[str, Any] | None]] = {
            kind: asyncio.Queue() for kind in self.items
        }
        self.asked: list[Mapping[str, str]] = []
        self.paths: set[str] = set()
        self.status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rsplit("/", 1)[1]
        self.asked.append(dict(request.query))
        self.paths.add(request.path)
        if self.status != 200:
            return web.json_response({"kind": "Status", "message": "no"}, status=self.status)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self.items[kind]})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.queues[kind].get()) is not None:
            data = json.dumps(event).encode() + b"\n"
            # In two parts, as a network may cut it.
            await response.write(data[:10])
            await response.write(data[10:])
        return response


@asynccontextmanager
async def _source(tmp_path: Path, namespace: str = "") -> AsyncIterator[tuple[FakeApiServer, EndpointSource]]:
    server = FakeApiServer()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    source = await kubernetes.connect(
        kubeconfig=file,
        namespace=namespace,
        default_validation=ValidationMode.ENFORCE,
        log=capturing_log([]),
        rng=seeded(),
    )
    running = asyncio.create_task(source.run())
    try:
        yield server, source
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await runner.cleanup()


def _serving(source: EndpointSource) -> list[str]:
    pool = source.snapshot().pools.get("toy")
    return [] if pool is None else [endpoint.name for endpoint in pool.serving]


async def test_pods_come_and_go(tmp_path: Path) -> None:
    async with _source(tmp_path, "ns") as (server, source):
        await until(lambda: source.snapshot().synced)
        assert _serving(source) == []
        await server.queues["pods"].put({"type": "ADDED", "object": pod("a", version=6)})
        await until(lambda: _serving(source) == ["a"])
        # Larger than a stream reader's line limit.
        big = pod("a", version=7, container="containerd://new")
        big["metadata"]["annotations"] = {"x": "y" * 3_000_000}
        await server.queues["pods"].put({"type": "MODIFIED", "object": big})
        await until(lambda: _serving(source) == [])
        await server.queues["pods"].put({"type": "MODIFIED", "object": pod("a", version=8)})
        await until(lambda: _serving(source) == ["a"])
        await server.queues["pods"].put({"type": "DELETED", "object": pod("a", version=9)})
        await until(lambda: source.snapshot().pools["toy"].endpoints == ())
        assert server.paths == {
            "/apis/structuredllm.io/v1alpha1/namespaces/ns/structuredllms",
            "/api/v1/namespaces/ns/pods",
        }
        selector = "app.kubernetes.io/component=engine,structuredllm.io/name"
        assert all(query.get("labelSelector", selector) == selector for query in server.asked)
        assert sum("labelSelector" in query for query in server.asked) == 2


async def test_api_server_that_fails_leaves_the_known_endpoints_in_use(tmp_path: Path) -> None:
    async with _source(tmp_path) as (server, source):
        server.items["pods"] = [pod("a")]
        await until(lambda: _serving(source) == ["a"])
        server.status = 500
        await server.queues["pods"].put(None)
        await until(lambda: source.snapshot().stale)
        assert _serving(source) == ["a"]
        server.status = 200
        # The watch is open again: not stale, although nothing has changed yet.
        await until(lambda: not source.snapshot().stale)
        server.items["pods"] = []
        await server.queues["pods"].put({"type": "DELETED", "object": pod("a", version=9)})
        await until(lambda: not source.snapshot().stale and _serving(source) == [])


async def test_version_too_old_lists_anew(tmp_path: Path) -> None:
    async with _source(tmp_path) as (server, source):
        server.items["pods"] = [pod("a")]
        await until(lambda: _serving(source) == ["a"])
        server.items["pods"] = [pod("b")]
        gone = {"kind": "Status", "code": 410, "message": "too old"}
        await server.queues["pods"].put({"type": "ERROR", "object": gone})
        await until(lambda: _serving(source) == ["b"])
