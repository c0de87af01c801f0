"""Discovery against a real API server: the operator's CRD, pods and their status, deletions, an outage."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from structuredllm_gateway.upstream import kubernetes
from structuredllm_gateway.upstream.endpoints import (
    EndpointSource,
    EndpointState,
    StreamDelivery,
    ValidationMode,
)
from structuredllm_operator.api.crd import build_crd
from tools.cluster.apiserver import ApiServer


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run a control plane with the CRD installed."""
    server = ApiServer.start(tmp_path_factory.mktemp("api"))
    try:
        server.kubectl("apply", "-f", "-", stdin=json.dumps(build_crd()))
        server.kubectl("wait", "--for=condition=Established", "crd/structuredllms.structuredllm.io")
        yield server
    finally:
        server.stop()


def _resource(name: str) -> str:
    spec = {
        "model": {"uri": "file:///models/toy"},
        "engine": {"image": "example/engine:1", "accelerator": "cpu"},
        "structuredOutput": {"validation": "Observe", "streaming": "Buffer"},
    }
    manifest = {
        "apiVersion": "structuredllm.io/v1alpha1",
        "kind": "StructuredLLM",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
    return json.dumps(manifest)


def _pod(name: str, owner: str) -> str:
    labels = {"structuredllm.io/name": owner, "app.kubernetes.io/component": "engine"}
    container = {
        "name": "engine",
        "image": "example/engine:1",
        "ports": [{"name": "http", "containerPort": 8000}],
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        # Kept by a finalizer, so that it can be seen terminating without a kubelet.
        "metadata": {"name": name, "labels": labels, "finalizers": ["test.example/keep"]},
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }
    return json.dumps(manifest)


def _status(container_id: str) -> str:
    status = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [
            {"type": "Ready", "status": "True"},
            {
                "type": "structuredllm.io/StructuredReady",
                "status": "True",
                "message": "[containerd://one] ok",
            },
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "containerID": container_id,
                "image": "example/engine:1",
                "imageID": "i",
                "ready": True,
                "restartCount": 0,
            }
        ],
    }
    return json.dumps({"status": status})


async def _until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110 - the source announces nothing
            await asyncio.sleep(0.02)


def _states(source: EndpointSource, model: str) -> list[EndpointState] | None:
    pool = source.snapshot().pools.get(model)
    return None if pool is None else [endpoint.state for endpoint in pool.endpoints]


async def _connected(kubeconfig: Path) -> Any:
    return await kubernetes.connect(
        kubeconfig=kubeconfig,
        namespace="",
        default_validation=ValidationMode.ENFORCE,
        log=structlog.get_logger(),
        rng=random.Random(1),  # noqa: S311 - jitter
    )


async def test_a_replica_from_its_start_to_its_end(api: ApiServer) -> None:
    source = await _connected(api.kubeconfig)
    running = asyncio.create_task(source.run())

    async def kubectl(*args: str, stdin: str | None = None) -> None:
        await asyncio.to_thread(api.kubectl, *args, stdin=stdin)

    async def set_status(container_id: str) -> None:
        await kubectl(
            "patch", "pod", "p", "--subresource=status", "--type=merge", "-p", _status(container_id)
        )

    try:
        await _until(lambda: source.snapshot().synced)
        await kubectl("apply", "-f", "-", stdin=_resource("toy"))
        await _until(lambda: _states(source, "toy") == [])
        assert source.snapshot().pools["toy"].validation is ValidationMode.OBSERVE
        assert source.snapshot().pools["toy"].structured.streaming is StreamDelivery.BUFFER
        assert source.snapshot().pools["toy"].structured.repair is False
        await kubectl("apply", "-f", "-", stdin=_pod("p", "toy"))
        await set_status("containerd://one")
        await _until(lambda: _states(source, "toy") == [EndpointState.SERVING])
        assert source.snapshot().pools["toy"].endpoints[0].url == "http://10.1.2.3:8000"
        await set_status("containerd://two")
        await _until(lambda: _states(source, "toy") == [EndpointState.GATED])
        await set_status("containerd://one")
        await _until(lambda: _states(source, "toy") == [EndpointState.SERVING])
        await kubectl("delete", "pod", "p", "--wait=false")
        await _until(lambda: _states(source, "toy") == [EndpointState.TERMINATING])
        await kubectl("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        await kubectl("delete", "pod", "p", "--wait=false", "--force", "--ignore-not-found")
        await _until(lambda: _states(source, "toy") == [])
        await kubectl("delete", "structuredllm", "toy")
        await _until(lambda: _states(source, "toy") is None)
        assert not source.snapshot().stale
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # TLS connections say goodbye in the loop; it must not end before them.
        await asyncio.sleep(0.3)
