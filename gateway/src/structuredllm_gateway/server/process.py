"""The process: two listening ports in one loop, and a shutdown that loses no request.

Owns sockets and signals. On SIGTERM or SIGINT: /ready turns 503, after a delay the API port closes, running
requests and streams finish within their limit, then the metrics port closes. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from structuredllm_gateway.app import LifeState, registry_of, replicas_of
from structuredllm_gateway.routes.metrics import create_metrics_app
from structuredllm_gateway.routes.replicas import replicas_route
from structuredllm_gateway.server.bounds import Bounds, Connections
from structuredllm_gateway.server.protocol import BoundedProtocol
from structuredllm_gateway.server.workers import WorkerPlace
from structuredllm_gateway.settings import LimitSettings, ServerSettings
from structuredllm_gateway.telemetry.connections import ConnectionCounts

# The app's own limit on the body comes first: its refusal is in the log and in the metrics.
_BODY_GRACE_SECONDS = 1.0
_MAX_SCRAPERS = 64


def bounds_of(server: ServerSettings, limits: LimitSettings) -> Bounds:
    """Return the limits of client connections."""
    return Bounds(
        header_seconds=server.header_timeout_seconds,
        body_seconds=limits.body_timeout_seconds + _BODY_GRACE_SECONDS,
        write_seconds=server.write_timeout_seconds,
        max_header_bytes=server.max_header_bytes,
        max_body_bytes=limits.max_body_bytes,
        write_buffer_bytes=server.write_buffer_bytes,
        max_connections=server.max_connections,
    )


class LoopServer(uvicorn.Server):
    """Uvicorn without its own signal handling: two servers share one process and one shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    @property
    def port(self) -> int:
        """The port that is listened on, after the start."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


class GatewayServer:
    """Serves one app and its metrics until told to stop."""

    def __init__(
        self,
        app: FastAPI,
        settings: ServerSettings,
        log: structlog.typing.FilteringBoundLogger,
        *,
        limits: LimitSettings | None = None,
        place: WorkerPlace | None = None,
    ) -> None:
        """Prepare; nothing listens yet. `place` is set in one of several workers, which share the ports."""
        self._settings = settings
        self._log = log
        self._life: LifeState = app.state.life
        bounds = bounds_of(settings, limits if limits is not None else LimitSettings())
        counts: ConnectionCounts = app.state.connections
        self._connections = Connections(bounds, counts)
        self._place = place
        self._api = LoopServer(
            server_config(app, settings, self._connections, has_lifespan=True, port=settings.port)
        )
        self._metrics = metrics_server(
            create_metrics_app(registry_of(app), replicas_route(replicas_of(app).build)),
            settings,
            None if place is None else str(place.metrics_path),
        )
        self._stop = asyncio.Event()

    @property
    def api_port(self) -> int:
        """The API's port, once `on_started` was called."""
        return self._api.port

    @property
    def metrics_port(self) -> int:
        """The port of /metrics, once `on_started` was called; not in a worker."""
        return self._metrics.port

    def stop(self) -> None:
        """Begin the shutdown; called a second time: end at once."""
        if self._stop.is_set():
            self._api.force_exit = self._metrics.force_exit = True
        self._life.draining = self._connections.draining = True
        self._stop.set()

    async def serve(self, on_started: Callable[[], None] | None = None) -> None:
        """Listen until `stop`, or a signal when `install_signals` was called; return when all has ended."""
        sockets = None if self._place is None else [self._place.api_socket()]
        running = [
            asyncio.create_task(self._api.serve(sockets)),
            asyncio.create_task(self._metrics.serve()),
        ]
        try:
            while not (self._api.started and self._metrics.started):
                if any(task.done() for task in running):
                    return
                await asyncio.sleep(0.01)
            self._log.info("serving", port=self.api_port)
            if on_started is not None:
                on_started()
            await self._stop.wait()
            self._log.info("draining", seconds=self._settings.drain_delay_seconds)
            await asyncio.sleep(self._settings.drain_delay_seconds)
            self._api.should_exit = True
            await running[0]
        finally:
            self._api.should_exit = self._metrics.should_exit = True
            await asyncio.gather(*running)
            self._log.info("stopped")

    def install_signals(self) -> None:
        """Stop on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)


def server_config(
    app: ASGIApp,
    settings: ServerSettings,
    connections: Connections,
    *,
    has_lifespan: bool,
    port: int = 0,
    uds: str | None = None,
) -> uvicorn.Config:
    """Return uvicorn's configuration for one listening port, or the unix socket `uds`."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=port,
        uds=uds,
        http=protocol_of(connections),
        ws="none",
        lifespan="on" if has_lifespan else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keepalive_seconds,
        timeout_graceful_shutdown=settings.graceful_timeout_seconds,
    )


def metrics_server(app: ASGIApp, settings: ServerSettings, uds: str | None = None) -> LoopServer:
    """Return a server for /metrics; scrapers are bounded as clients are, with connections of their own."""
    scrapers = Connections(replace(bounds_of(settings, LimitSettings()), max_connections=_MAX_SCRAPERS))
    return LoopServer(
        server_config(app, settings, scrapers, has_lifespan=False, port=settings.metrics_port, uds=uds)
    )


def protocol_of(connections: Connections) -> type[asyncio.Protocol]:
    """Return what uvicorn takes for its protocol class: ours, with its connections kept by `connections`."""
    made = functools.partial(BoundedProtocol, connections=connections)
    # uvicorn only calls it.
    return cast("type[asyncio.Protocol]", made)
