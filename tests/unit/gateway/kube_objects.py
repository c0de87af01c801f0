"""Builders of the API objects that the discovery tests use."""

from __future__ import annotations

from typing import Any

RUNNING = "containerd://abc"


def resource(name: str, spec: dict[str, Any], *, namespace: str = "ns", version: int = 1) -> dict[str, Any]:
    """Return a StructuredLLM."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"r-{namespace}-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": metadata, "spec": spec}


def pod(
    name: str,
    *,
    owner: str = "toy",
    namespace: str = "ns",
    version: int = 1,
    ip: str | None = "10.0.0.1",
    port: int = 8000,
    phase: str = "Running",
    ready: str | None = "True",
    gate: str | None = "True",
    message: str | None = f"[{RUNNING}] 24 of 24 structured answers valid in 1.9 s",
    container: str | None = RUNNING,
    deleting: bool = False,
) -> dict[str, Any]:
    """Return an engine pod that serves, with changes."""
    conditions: list[dict[str, Any]] = []
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})
    if gate is not None:
        conditions.append({"type": "structuredllm.io/StructuredReady", "status": gate, "message": message})
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"p-{namespace}-{name}",
        "resourceVersion": str(version),
        "labels": {"structuredllm.io/name": owner, "app.kubernetes.io/component": "engine"},
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    engine: dict[str, Any] = {"name": "engine", "ports": [{"name": "http", "containerPort": port}]}
    status: dict[str, Any] = {"phase": phase, "conditions": conditions}
    if ip is not None:
        status["podIP"] = ip
    if container is not None:
        status["containerStatuses"] = [
            {"name": "side", "containerID": "containerd://side"},
            {"name": "engine", "containerID": container},
        ]
    return {"metadata": metadata, "spec": {"containers": [engine]}, "status": status}
