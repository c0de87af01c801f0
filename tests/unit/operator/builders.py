"""Builders for values that the operator's unit tests need: a valid spec, a pod, a snapshot."""

from typing import Any

from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import EngineInfo, EngineReport, Gate, Observed, PatchState, Pod
from structuredllm_operator.plan.plan import build_children, parse_spec, revision_of

CONTAINER = "containerd://aaa"


def raw_spec(**changes: Any) -> dict[str, Any]:
    """Return a valid spec as the API stores it; keywords replace whole fields."""
    return {
        "model": {"uri": "file:///models/toy"},
        "engine": {"image": "example/engine:1"},
        "parallelism": {"tensor": 1, "pipeline": 3},
        **changes,
    }


def spec(**changes: Any) -> StructuredLLMSpec:
    """Return a typed valid spec."""
    return parse_spec(raw_spec(**changes))


def info(**changes: Any) -> EngineInfo:
    """Return what a right engine reports for `spec()`."""
    values: dict[str, Any] = {
        "vllm_version": "0.32.0",
        "policy": "required",
        "patches": (PatchState("p001", "active"),),
        "tensor": 1,
        "pipeline": 3,
        "world_size": 3,
        "async_scheduling": True,
        **changes,
    }
    return EngineInfo(**values)


def revision(raw: dict[str, Any] | None = None) -> str:
    """Return the template hash that the operator gives the pods of a spec."""
    observed = Observed("ns", "toy", "uid-1", 1, raw or raw_spec())
    return revision_of(build_children(observed, parse_spec(observed.spec)))


def pod(**changes: Any) -> Pod:
    """Return a pod of the current revision whose container is ready and not proven yet."""
    values: dict[str, Any] = {
        "name": "toy-engine-x",
        "uid": "pod-1",
        "ip": "10.0.0.1",
        "revision": revision(),
        "phase": "Running",
        "container_id": CONTAINER,
        "running": True,
        "container_ready": True,
        **changes,
    }
    return Pod(**values)


def passed_gate(container: str = CONTAINER) -> Gate:
    """Return the condition of a gate that a burst opened."""
    return Gate(
        "True", "BurstPassed", f"[{container}] 24 of 24 structured answers valid", "2026-01-01T00:00:00Z"
    )


def observed(*pods: Pod, raw: dict[str, Any] | None = None, **changes: Any) -> Observed:
    """Return a snapshot with these pods, whose engines all report what is right."""
    values: dict[str, Any] = {
        "namespace": "ns",
        "name": "toy",
        "uid": "uid-1",
        "generation": 1,
        "spec": raw or raw_spec(),
        "pods": pods,
        "engines": {one.uid: EngineReport(info=info()) for one in pods if one.live_container},
        **changes,
    }
    return Observed(**values)
