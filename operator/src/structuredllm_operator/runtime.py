"""Puts the parts together and runs them until told to stop.

Owns construction, start order and shutdown. Nothing else in the package makes clients or reads clocks.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast

import httpx
import kopf
from prometheus_client import start_http_server

from structuredllm_operator.controller import Controller
from structuredllm_operator.engine_info import HttpEngineInfo
from structuredllm_operator.errors import ConfigError, ForbiddenError, KubeError
from structuredllm_operator.gate_runner import GateRunner, ResourceKey
from structuredllm_operator.handlers.registry import build_registry, build_settings
from structuredllm_operator.kube.client import KubeClient
from structuredllm_operator.metrics import Metrics
from structuredllm_operator.model_progress import HttpProgress
from structuredllm_operator.plan.model_cache import Downloader
from structuredllm_operator.prober import Prober
from structuredllm_operator.quarantine_source import HttpQuarantines
from structuredllm_operator.settings import Settings
from structuredllm_operator.work_queue import WorkQueue

_LOGGER = logging.getLogger(__name__)

CRD_WAIT_SECONDS: Final = 5.0


async def run_operator(
    settings: Settings, *, stop: asyncio.Event | None = None, ready: asyncio.Event | None = None
) -> None:
    """Run until `stop` is set or the process gets SIGTERM or SIGINT.

    Args:
        settings: the operator's settings.
        stop: ends the run when set.
        ready: set when all watches are on.

    Raises:
        ConfigError: there is no access to a cluster.
    """
    kubeconfig = settings.kubeconfig or None
    metrics = Metrics()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            await KubeClient.connect(kubeconfig, timeout_seconds=settings.request_timeout_seconds)
        )
        stack.enter_context(_metrics_server(settings, metrics))
        http = await stack.enter_async_context(_pod_client(settings))
        await _wait_for_crd(client)
        queue, runner = _build(settings, client, http, metrics)
        stack.push_async_callback(runner.close)
        worker = asyncio.create_task(queue.run(), name="work queue")
        stack.push_async_callback(_cancel, worker)
        namespaces = settings.namespace_list()
        port = settings.liveness_port
        await kopf.operator(
            registry=build_registry(queue.add, kubeconfig),
            settings=build_settings(settings.request_timeout_seconds),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            # Without one kopf asks for the user's name, and the image's user has none.
            identity=cast(Any, f"{socket.gethostname()}/{os.getpid()}"),
            liveness_endpoint=f"http://{settings.liveness_host}:{port}/healthz" if port else None,
            stop_flag=stop,
            ready_flag=ready,
        )


def _build(
    settings: Settings, client: KubeClient, http: httpx.AsyncClient, metrics: Metrics
) -> tuple[WorkQueue[ResourceKey], GateRunner]:
    chance = random.Random()  # noqa: S311 (spreads load, keeps no secret)
    runner = GateRunner(
        Prober(http),
        on_done=lambda key: queue.add(key),
        max_concurrent=settings.max_concurrent_bursts,
        clock=time.monotonic,
        jitter_seconds=lambda: chance.uniform(0.0, settings.burst_jitter_seconds),
        metrics=metrics,
    )
    controller = Controller(
        client=client,
        engines=HttpEngineInfo(http, timeout_seconds=settings.info_timeout_seconds),
        runner=runner,
        metrics=metrics,
        clock=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        resync_seconds=settings.resync_seconds,
        gateway_url=settings.gateway_url,
        quarantines=_quarantines(settings, http),
        progress=HttpProgress(http, timeout_seconds=settings.info_timeout_seconds),
        downloader=_downloader(settings),
    )
    queue = WorkQueue(controller.reconcile, workers=settings.workers, jitter=lambda: chance.uniform(0.9, 1.1))
    return queue, runner


def _downloader(settings: Settings) -> Downloader | None:
    if not settings.downloader_image:
        return None
    return Downloader(settings.downloader_image, settings.downloader_image_pull_policy)


def _quarantines(settings: Settings, http: httpx.AsyncClient) -> HttpQuarantines | None:
    if not settings.gateway_metrics_url:
        return None
    return HttpQuarantines(
        http,
        settings.gateway_metrics_url,
        timeout_seconds=settings.info_timeout_seconds,
        monotonic=time.monotonic,
    )


@contextlib.asynccontextmanager
async def _pod_client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Client for pod IPs: never through a proxy, connections bounded by what bursts may use together."""
    limits = httpx.Limits(max_connections=256 * settings.max_concurrent_bursts, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=None) as client:  # noqa: S113 (per call)
        yield client


@contextlib.contextmanager
def _metrics_server(settings: Settings, metrics: Metrics) -> Iterator[None]:
    if not settings.metrics_port:
        yield
        return
    try:
        server, thread = start_http_server(
            settings.metrics_port, addr=settings.metrics_host, registry=metrics.registry
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.metrics_host}:{settings.metrics_port} for metrics: {error};"
            " choose another --metrics-port"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


async def _wait_for_crd(client: KubeClient) -> None:
    """Wait until the resource is served: kopf looks for it once, at its start."""
    while True:
        try:
            if await client.resource_is_served():
                return
            _LOGGER.warning("the CRD structuredllms.structuredllm.io is not installed; waiting for it")
        except ForbiddenError as error:
            _LOGGER.warning(
                "the API server refuses discovery: %s; check the operator's service account", error
            )
        except KubeError as error:
            _LOGGER.warning("the API server does not answer yet: %s", error)
        await asyncio.sleep(CRD_WAIT_SECONDS)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
