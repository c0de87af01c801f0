"""The first process of a pod with several workers: starts them, keeps them running, answers /metrics for all.

Owns the workers' processes and nothing of a request. SIGTERM goes to every worker, each drains as a single
process would. A worker that ends by itself is started again, after a pause that grows while it keeps failing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from prometheus_client import CollectorRegistry

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.replicas.report import merged
from structuredllm_gateway.routes.metrics import create_metrics_app
from structuredllm_gateway.routes.replicas import replicas_route
from structuredllm_gateway.server.process import metrics_server
from structuredllm_gateway.server.workers import PLACE_VARIABLE, WorkerPlace, listening_socket
from structuredllm_gateway.settings import ServerSettings
from structuredllm_gateway.telemetry.aggregate import WorkerMetrics

EXIT_CONFIGURATION = 2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_HEALTHY_SECONDS = 60.0
_SCRAPE_SECONDS = 2.0
_KILL_GRACE_SECONDS = 5.0
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Supervisor:
    """Runs `settings.workers` copies of `command`."""

    def __init__(
        self,
        command: Sequence[str],
        settings: ServerSettings,
        folder: Path,
        log: structlog.typing.FilteringBoundLogger,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare; `folder` is a private one in which the processes meet."""
        self._command = tuple(command)
        self._settings = settings
        self._folder = folder
        self._log = log
        self._pause = pause
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._metrics = WorkerMetrics()
        self._port_keeper: socket.socket | None = None
        self.metrics_port = 0
        self.api_port = 0

    @property
    def pids(self) -> dict[int, int]:
        """The running workers' process ids by number."""
        return {number: process.pid for number, process in self._processes.items()}

    def stop(self) -> None:
        """Ask every worker to drain and end; a second time: at once."""
        self._stop.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    def install_signals(self) -> None:
        """Stop on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def run(self, on_started: Callable[[], None] | None = None) -> int:
        """Run the workers until `stop`; return the exit code.

        Raises:
            SettingsError: the port cannot be had.
        """
        settings = self._settings
        try:
            # Bound and never listened on: it keeps the port (0 = any) for workers, also while none runs.
            self._port_keeper = listening_socket(settings.host, settings.port, listen=False)
        except OSError as error:
            raise SettingsError(f"server.port {settings.port} cannot be had: {error.strerror}") from error
        self.api_port = self._port_keeper.getsockname()[1]
        registry = CollectorRegistry()
        registry.register(self._metrics)
        admin = create_metrics_app(registry, replicas_route(self.replicas), refresh=self.refresh)
        metrics = metrics_server(admin, settings)
        serving = asyncio.create_task(metrics.serve())
        keeping = [asyncio.create_task(self._keep(number)) for number in range(settings.workers)]
        try:
            while not (metrics.started or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            if metrics.started:
                self.metrics_port = metrics.port
            if on_started is not None:
                on_started()
            await asyncio.gather(*keeping)
        finally:
            self.stop()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            metrics.should_exit = True
            await serving
            self._port_keeper.close()
        return self._exit_code

    async def _keep(self, number: int) -> None:
        """Keep one worker running."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            began = loop.time()
            code = await self._run_worker(number)
            self._metrics.worker_ended(number)
            if self._stop.is_set():
                return
            self._log.error("worker_ended", worker=number, exit_code=code)
            if code == EXIT_CONFIGURATION:
                # Every worker has the same configuration; starting them again would not mend it.
                self._exit_code = code
                self.stop()
                return
            pause = _FIRST_PAUSE_SECONDS if loop.time() - began > _HEALTHY_SECONDS else pause
            await self._pause(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)

    async def _run_worker(self, number: int) -> int:
        place = WorkerPlace(number, self._settings.host, self.api_port, self._folder)
        place.metrics_path.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._command, env={**os.environ, PLACE_VARIABLE: place.as_variable()}
        )
        self._processes[number] = process
        if self._stop.is_set():
            process.send_signal(signal.SIGTERM)
        ending = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
            limit = (
                self._settings.drain_delay_seconds
                + self._settings.graceful_timeout_seconds
                + _KILL_GRACE_SECONDS
            )
            async with asyncio.timeout(limit):
                return await asyncio.shield(ending)
        except TimeoutError:
            self._log.error("worker_killed", worker=number, seconds=limit)
            process.kill()
            return await ending
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await ending
            raise
        finally:
            stopping.cancel()
            del self._processes[number]

    async def refresh(self) -> None:
        """Fetch what every running worker has counted; one that does not answer keeps what it last said."""
        numbers = tuple(self._processes)
        texts = await asyncio.gather(*(self._scrape(number, "/metrics") for number in numbers))
        self._metrics.take({number: text for number, text in zip(numbers, texts, strict=True) if text})

    async def replicas(self) -> dict[str, Any]:
        """Fetch what every running worker thinks of the replicas, as one report."""
        asked = (self._scrape(number, "/debug/replicas") for number in tuple(self._processes))
        return merged([json.loads(text) for text in await asyncio.gather(*asked) if text])

    async def _scrape(self, number: int, path: str) -> str:
        place = WorkerPlace(number, self._settings.host, self.api_port, self._folder)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(path=str(place.metrics_path)),
                    timeout=aiohttp.ClientTimeout(total=_SCRAPE_SECONDS),
                ) as session,
                session.get(f"http://worker{path}", headers={"accept": _OPENMETRICS}) as answer,
            ):
                return await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._log.warning("worker_not_scraped", worker=number, error=repr(error))
            return ""
