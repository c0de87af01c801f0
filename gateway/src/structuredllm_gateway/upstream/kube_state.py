"""From Kubernetes objects to endpoints, as pure functions over the API's JSON.

Owns the rule when a pod serves; must not import I/O. The operator's gate is bound to one engine container:
its condition's message starts with `[<containerID>]`, and counts only while that is the container now
running. So a restarted engine is ungated at once here, also while the operator is down.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from structuredllm_gateway.kube_names import (
    ENGINE_CONTAINER,
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    GATE_CONDITION,
    LABEL_NAME,
)
from structuredllm_gateway.upstream.endpoints import (
    STRICTNESS,
    Endpoint,
    EndpointState,
    GrammarBackend,
    ModelPool,
    PickPolicy,
    StreamDelivery,
    StructuredPolicy,
    ValidationMode,
)

Manifest = Mapping[str, Any]
_FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Resource:
    """What the gateway needs of one StructuredLLM.

    `gated`: its pods serve only once the gate is passed. `policy` None: the gateway's own.
    """

    namespace: str
    name: str
    model: str
    validation: ValidationMode
    gated: bool
    structured: StructuredPolicy
    policy: PickPolicy | None = None


def read_resource(manifest: Manifest, default_validation: ValidationMode) -> Resource:
    """Read a StructuredLLM; absent fields have the defaults of its schema."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    structured = spec.get("structuredOutput") or {}
    validation = structured.get("validation")
    streaming, backend = structured.get("streaming"), structured.get("backend")
    judging = StructuredPolicy(
        StreamDelivery(streaming) if streaming in set(StreamDelivery) else StreamDelivery.TRAILING,
        structured.get("repair") is True,
        frozenset({GrammarBackend(backend) if backend in set(GrammarBackend) else GrammarBackend.XGRAMMAR}),
    )
    picking = (spec.get("routing") or {}).get("policy")
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        model=(spec.get("model") or {}).get("name") or metadata["name"],
        validation=ValidationMode(validation) if validation in set(ValidationMode) else default_validation,
        gated=(spec.get("warmup") or {}).get("policy", "Required") == "Required",
        structured=judging,
        policy=PickPolicy(picking) if picking in set(PickPolicy) else None,
    )


def pod_endpoint(pod: Manifest, *, gated: bool) -> Endpoint | None:
    """Return the endpoint a pod stands for; None when it has no address yet or has ended.

    A terminating pod is TERMINATING whatever its conditions say: they stay True until it is gone.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    address = status.get("podIP")
    if not address or status.get("phase") in _FINISHED_PHASES:
        return None
    if metadata.get("deletionTimestamp"):
        state = EndpointState.TERMINATING
    elif _condition(status, "Ready").get("status") == "True" and (not gated or gate_is_passed(pod)):
        state = EndpointState.SERVING
    else:
        state = EndpointState.GATED
    return Endpoint(
        metadata["name"],
        f"http://{_host(address)}:{_engine_port(pod)}",
        state,
        namespace=metadata.get("namespace", ""),
        incarnation=_running_container(status),
    )


def gate_is_passed(pod: Manifest) -> bool:
    """Whether the structured gate is passed by the engine container that runs now."""
    status = pod.get("status") or {}
    gate = _condition(status, GATE_CONDITION)
    running = _running_container(status)
    if gate.get("status") != "True" or not running:
        return False
    return str(gate.get("message") or "").startswith(f"[{running}]")


def build_pools(
    resources: Iterable[Manifest], pods: Iterable[Manifest], default_validation: ValidationMode
) -> dict[str, ModelPool]:
    """Return the pools by served model name.

    Resources that serve the same name share a pool, with the strictest of their validation modes and what
    `StructuredPolicy.joined` makes of the rest. Pods without a resource are left out: a deleted resource
    serves nothing, although its pods may still be ending.
    """
    by_key: dict[tuple[str, str], Resource] = {}
    pools: dict[str, ModelPool] = {}
    for manifest in sorted(resources, key=_place):
        item = read_resource(manifest, default_validation)
        by_key[item.namespace, item.name] = item
        before = pools.get(item.model, ModelPool(item.model, item.validation, structured=item.structured))
        mode = max(before.validation, item.validation, key=STRICTNESS.index)
        pools[item.model] = ModelPool(
            item.model,
            mode,
            structured=before.structured.joined(item.structured),
            # One pool has one policy: that of the first resource by name that states one.
            policy=before.policy or item.policy,
        )
    found: dict[str, list[Endpoint]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        owner = by_key.get((metadata["namespace"], (metadata.get("labels") or {}).get(LABEL_NAME, "")))
        if owner is None:
            continue
        endpoint = pod_endpoint(pod, gated=owner.gated)
        if endpoint is not None:
            found.setdefault(owner.model, []).append(endpoint)
    for model, endpoints in found.items():
        pool = pools[model]
        pools[model] = replace(pool, endpoints=tuple(sorted(endpoints, key=lambda e: e.name)))
    return pools


def _place(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for item in status.get("conditions") or ():
        if item.get("type") == kind:
            found: Mapping[str, Any] = item
            return found
    return {}


def _running_container(status: Mapping[str, Any]) -> str:
    for item in status.get("containerStatuses") or ():
        if item.get("name") == ENGINE_CONTAINER:
            return str(item.get("containerID") or "")
    return ""


def _engine_port(pod: Manifest) -> int:
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container.get("name") == ENGINE_CONTAINER:
            for port in container.get("ports") or ():
                if port.get("name") == ENGINE_PORT_NAME:
                    return int(port["containerPort"])
    return ENGINE_PORT


def _host(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
