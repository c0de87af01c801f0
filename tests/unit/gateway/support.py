"""Helpers of the gateway's tests: a gateway on a real socket, endpoints over fake engines, log capture."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import structlog
import uvicorn
from fastapi import FastAPI
from httpx_aiohttp import AiohttpTransport

from structuredllm_gateway.app import create_app, registry_of
from structuredllm_gateway.server.bounds import Connections
from structuredllm_gateway.server.process import LoopServer, bounds_of, protocol_of
from structuredllm_gateway.settings import DiscoverySettings, Settings, UpstreamSettings
from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointSource,
    EndpointState,
    ModelPool,
    Snapshot,
    ValidationMode,
)
from structuredllm_gateway.upstream.http1 import Http1Client
from tests.fakes.fake_engine import FakeEngine

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def seeded() -> random.Random:
    """Return repeatable randomness."""
    return random.Random(1)  # noqa: S311 - tests


class First(random.Random):
    """Breaks ties for the first, so that a test knows which replica is asked first."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


async def until(reached: Callable[[], object]) -> None:
    """Wait for a state that no event announces, for at most ten seconds."""
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - polls other people's state
            await asyncio.sleep(0.005)


class FixedEndpoints:
    """An endpoint source that a test sets by hand, by setting `view`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._view = snapshot
        self._listeners: list[Callable[[], None]] = []
        self.suspected: list[str] = []

    @property
    def view(self) -> Snapshot:
        return self._view

    @view.setter
    def view(self, changed: Snapshot) -> None:
        self._view = changed
        for listener in self._listeners:
            listener()

    def snapshot(self) -> Snapshot:
        return self._view

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def suspect(self, endpoint: Endpoint) -> None:
        self.suspected.append(endpoint.name)

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Running:
    """A gateway that listens: its base URL, an HTTP client, its app, the events it logged."""

    url: str
    http: httpx.AsyncClient
    app: FastAPI
    logs: list[Mapping[str, Any]] = field(default_factory=list)

    async def ask(self, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
        return await self.http.post(path, json=body)

    def metric(self, name: str, **labels: str) -> float | None:
        return registry_of(self.app).get_sample_value(f"structuredllm_gateway_{name}", labels)

    @property
    def request_lines(self) -> list[Mapping[str, Any]]:
        return [line for line in self.logs if line["event"] == "request"]


def pool_of(
    *engines: FakeEngine | str, mode: ValidationMode = ValidationMode.ENFORCE, model: str = "toy"
) -> FixedEndpoints:
    """Return a source with one model; the replicas are named r0, r1, ..."""
    endpoints = tuple(
        Endpoint(f"r{index}", engine if isinstance(engine, str) else engine.url, EndpointState.SERVING)
        for index, engine in enumerate(engines)
    )
    return FixedEndpoints(Snapshot({model: ModelPool(model, mode, endpoints)}, synced=True))


def settings_with(**groups: Mapping[str, Any]) -> Settings:
    """Return settings with some values changed, independent of the environment."""
    return Settings.model_validate({"discovery": DiscoverySettings(), "auth": {"mode": "open"}, **groups})


def upstream_client(settings: UpstreamSettings) -> Http1Client:
    return Http1Client.of(settings)


def capturing_log(lines: list[Mapping[str, Any]]) -> structlog.typing.FilteringBoundLogger:
    def capture(_logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        lines.append({"level": method, **event})
        raise structlog.DropEvent

    log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    return log


@asynccontextmanager
async def gateway(endpoints: EndpointSource, settings: Settings | None = None) -> AsyncIterator[Running]:
    """Run a gateway on a free port until the context ends."""
    chosen = settings or settings_with()
    logs: list[Mapping[str, Any]] = []
    app = create_app(
        chosen,
        upstream=upstream_client(chosen.upstream),
        endpoints=endpoints,
        rng=First(),
        log=capturing_log(logs),
    )
    connections = Connections(bounds_of(chosen.server, chosen.limits), app.state.connections)
    server = LoopServer(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http=protocol_of(connections),
            ws="none",
            # As in `process.server_config`: nothing around the app, or no request would go the direct way.
            proxy_headers=False,
            log_config=None,
            timeout_keep_alive=chosen.server.keepalive_seconds,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    url = f"http://127.0.0.1:{server.port}"
    try:
        async with httpx.AsyncClient(
            base_url=url, transport=AiohttpTransport(verify=False), timeout=5.0
        ) as http:
            yield Running(url, http, app, logs)
    finally:
        server.should_exit = True
        await serving


def structured(
    schema: Mapping[str, Any] | bool = SCHEMA, *, model: str = "toy", **more: Any
) -> dict[str, Any]:
    """Return a chat request that asks for `schema`."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "secret prompt"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        **more,
    }


def plain(**more: Any) -> dict[str, Any]:
    """Return a chat request without structure."""
    return {"model": "toy", "messages": [{"role": "user", "content": "secret prompt"}], **more}


def events_of(text: str) -> list[str]:
    """Return the events of an SSE body, without their blank lines."""
    return [event for event in text.split("\n\n") if event]


def data_of(events: Sequence[str]) -> list[Any]:
    """Return the JSON of the data events, without the end mark."""
    payloads = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]
