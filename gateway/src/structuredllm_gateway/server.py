"""The process: two listening ports in one loop, and a shutdown that loses no request.

Owns sockets and signals. On SIGTERM or SIGINT: /ready turns 503, after a delay the API port closes, running
requests and streams finish within their limit, then the metrics port closes. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from structuredllm_gateway.app import LifeState, registry_of, replicas_of
from structuredllm_gateway.routes.metrics import create_metrics_app
from structuredllm_gateway.routes.replicas import replicas_route
from structuredllm_gateway.settings import ServerSettings


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handling: two servers share one process and one shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def port(self) -> int:
        """The port that is listened on, after the start."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


class GatewayServer:
    """Serves one app and its metrics until told to stop."""

    def __init__(
        self, app: FastAPI, settings: ServerSettings, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        """Prepare; nothing listens yet."""
        self._settings = settings
        self._log = log
        self._life: LifeState = app.state.life
        self._api = _Server(self._config(app, settings.port, lifespan="on"))
        admin = create_metrics_app(registry_of(app), replicas_route(replicas_of(app).build))
        self._metrics = _Server(self._config(admin, settings.metrics_port, lifespan="off"))
        self._stop = asyncio.Event()

    @property
    def api_port(self) -> int:
        """The API's port, once `on_started` was called."""
        return self._api.port

    @property
    def metrics_port(self) -> int:
        """The port of /metrics, once `on_started` was called."""
        return self._metrics.port

    def stop(self) -> None:
        """Begin the shutdown; called a second time: end at once."""
        if self._stop.is_set():
            self._api.force_exit = self._metrics.force_exit = True
        self._life.draining = True
        self._stop.set()

    async def serve(self, on_started: Callable[[], None] | None = None) -> None:
        """Listen until `stop`, or a signal when `install_signals` was called; return when all has ended."""
        running = [asyncio.create_task(server.serve()) for server in (self._api, self._metrics)]
        try:
            while not (self._api.started and self._metrics.started):
                if any(task.done() for task in running):
                    return
                await asyncio.sleep(0.01)
            self._log.info("serving", port=self.api_port, metrics_port=self.metrics_port)
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

    def _config(self, app: ASGIApp, port: int, *, lifespan: str) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            host=self._settings.host,
            port=port,
            lifespan="on" if lifespan == "on" else "off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=self._settings.keepalive_seconds,
            timeout_graceful_shutdown=self._settings.graceful_timeout_seconds,
        )
