"""Fixtures: one control plane with the CRD, a namespace, clients and an operator in the process."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import ApiClient, CoreV1Api

from structuredllm_operator.kube.client import STRUCTURED_LLM, KubeClient
from structuredllm_operator.kube.login import load_configuration
from structuredllm_operator.runtime import run_operator
from structuredllm_operator.settings import Settings
from tools.cluster.apiserver import ApiServer
from tools.paths import repo_root

CRD_PATH = "charts/structuredllm/files/crds/structuredllms.structuredllm.io.yaml"

_NUMBERS = itertools.count(1)

Resource = dict[str, Any]


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server with controllers and the generated CRD."""
    with ApiServer.start(tmp_path_factory.mktemp("api"), controllers=True) as server:
        server.kubectl("apply", "-f", str(repo_root() / CRD_PATH))
        server.kubectl(
            "wait", "--for=condition=Established", "crd/structuredllms.structuredllm.io", "--timeout=30s"
        )
        yield server


@pytest.fixture
def pod_ip() -> str:
    """A loopback address that no other test or process uses, so that ports 8000 and 9464 are free on it."""
    number, process = next(_NUMBERS), os.getpid()
    return f"127.{64 + process % 128}.{(process >> 7) % 256}.{number % 250 + 2}"


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[ApiClient]:
    """The generated client, for what the operator must not need."""
    client = ApiClient(await load_configuration(str(api.kubeconfig)))
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[KubeClient]:
    """The operator's own client."""
    async with await KubeClient.connect(str(api.kubeconfig)) as client:
        yield client


@pytest.fixture
async def namespace(kube: ApiClient) -> str:
    """A fresh namespace."""
    name = f"t{next(_NUMBERS)}-{os.getpid()}"
    await CoreV1Api(kube).create_namespace({"metadata": {"name": name}})
    return name


@pytest.fixture
def operator(api: ApiServer, namespace: str) -> Callable[..., contextlib.AbstractAsyncContextManager[None]]:
    """Start the operator for the namespace: `async with operator(): ...`, as administrator by default."""

    @contextlib.asynccontextmanager
    async def start(kubeconfig: Path | None = None) -> AsyncIterator[None]:
        settings = Settings(
            kubeconfig=str(kubeconfig or api.kubeconfig),
            namespaces=namespace,
            resync_seconds=30.0,
            burst_jitter_seconds=0.0,
            info_timeout_seconds=1.0,
            metrics_port=0,
            liveness_port=0,
            gateway_url="http://gateway.test",
            downloader_image="example/operator:1",
        )
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(run_operator(settings, stop=stop, ready=ready))
        waiter = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        try:
            yield
        finally:
            waiter.cancel()
            stop.set()
            await asyncio.wait_for(task, 30)

    return start


def resource(namespace: str, name: str = "toy", **spec: Any) -> Resource:
    """Return a small valid resource; keywords replace fields of the spec."""
    return {
        "apiVersion": "structuredllm.io/v1alpha1",
        "kind": "StructuredLLM",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": "file:///models/toy"},
            "engine": {"image": "example/engine:1"},
            "parallelism": {"tensor": 1, "pipeline": 3},
            "warmup": {"retryBackoffSeconds": 1, "timeoutSeconds": 20},
            **spec,
        },
    }


def as_yaml(body: Resource) -> str:
    """Return a manifest for kubectl's stdin."""
    return str(yaml.safe_dump(body))


async def eventually(
    what: str, check: Callable[[], Awaitable[object]], *, seconds: float = 40.0, period: float = 0.1
) -> None:
    """Wait until the check returns something true; fail with its last value and the name of the wait."""
    deadline = time.monotonic() + seconds
    while True:
        value = await check()
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(period)


def condition(body: Resource | None, kind: str) -> Resource:
    """Return one condition of a resource, or an empty dict."""
    conditions = ((body or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})


async def wait_condition(
    client: KubeClient, namespace: str, kind: str, status: str, reason: str, *, name: str = "toy"
) -> Resource:
    """Wait for a condition and return the resource; a failure shows the conditions there instead."""
    last: Resource = {}

    async def check() -> bool:
        nonlocal last
        last = await client.get(STRUCTURED_LLM, namespace, name) or {}
        found = condition(last, kind)
        return (found.get("status"), found.get("reason")) == (status, reason)

    try:
        await eventually(f"{kind}={status}/{reason}", check)
    except AssertionError as error:
        conditions = "\n".join(
            f"{one['type']}={one['status']} {one['reason']}: {one['message']}"
            for one in (last.get("status") or {}).get("conditions") or []
        )
        raise AssertionError(f"{error}; the conditions are:\n{conditions}") from None
    return last
