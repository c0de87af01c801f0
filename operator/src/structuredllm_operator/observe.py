"""Reads one resource, its children, its pods and its engines into an `Observed` snapshot.

Owns the translation from API objects to our values. Decides nothing.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from structuredllm_operator.api.engine_spec import EngineType
from structuredllm_operator.api.labels import (
    ENGINE_CONTAINER,
    GATE_CONDITION,
    TEMPLATE_HASH_ANNOTATION,
    pod_selector_string,
)
from structuredllm_operator.api.names import child_name
from structuredllm_operator.engine_info import EngineInfoSource
from structuredllm_operator.kube.client import (
    CHILD_KINDS,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD,
    STRUCTURED_LLM,
    Body,
    KubeClient,
)
from structuredllm_operator.kube.served import ServedKinds
from structuredllm_operator.model_progress import ProgressSource
from structuredllm_operator.observe_model import observe_model
from structuredllm_operator.plan import groups
from structuredllm_operator.plan.observed import (
    Child,
    Deployment,
    EngineReport,
    Gate,
    Group,
    Observed,
    Pod,
    Quarantine,
    Termination,
)
from structuredllm_operator.plan.observed_model import ModelObserved
from structuredllm_operator.quarantine_source import QuarantineSource

LWS_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
"""Labels and an annotation that the LeaderWorkerSet controller puts on its pods."""


async def observe(
    client: KubeClient,
    engines: EngineInfoSource,
    namespace: str,
    name: str,
    quarantines: QuarantineSource | None = None,
    served: ServedKinds | None = None,
    progress: ProgressSource | None = None,
) -> Observed | None:
    """Return the snapshot, or None when the resource does not exist.

    Args:
        client: the API server.
        engines: asks engines what they run.
        namespace: of the resource.
        name: of the resource.
        quarantines: asks the gateways; None = there are none to ask.
        served: knows which optional kinds the cluster has; None = asked anew each time.
        progress: asks running downloads of models; None = nobody is asked.

    Raises:
        KubeError: a read failed; the caller tries again later.
    """
    resource = await client.get(STRUCTURED_LLM, namespace, name)
    if resource is None:
        return None
    metadata = resource["metadata"]
    if metadata.get("deletionTimestamp"):
        return _snapshot(resource, deleting=True)
    groups_served = await (served.has if served is not None else client.serves)(LEADER_WORKER_SET)
    kinds = (*CHILD_KINDS, LEADER_WORKER_SET) if groups_served else CHILD_KINDS
    children = await asyncio.gather(*(client.get(kind, namespace, child_name(name)) for kind in kinds))
    listed = await client.list(POD, namespace, label_selector=pod_selector_string(name))
    pods, workers = groups.join(
        sorted((to_pod(body) for body in listed), key=lambda pod: (pod.name, pod.uid))
    )
    live = [pod for pod in pods if pod.live_container and pod.ip and not pod.terminating]
    if ((resource.get("spec") or {}).get("engine") or {}).get("type") == EngineType.LMDEPLOY:
        live = []  # it has no telemetry port
    said = await quarantines.fetch() if quarantines is not None else None
    reports = await asyncio.gather(*(engines.fetch(pod) for pod in live))
    by_kind = {kind.kind: child for kind, child in zip(kinds, children, strict=True) if child is not None}
    return _snapshot(
        resource,
        children=tuple(Child(kind, _is_owned(child, metadata["uid"])) for kind, child in by_kind.items()),
        deployment=to_deployment(by_kind.get(DEPLOYMENT.kind)),
        pods=pods,
        workers=workers,
        groups_served=groups_served,
        model=await observe_model(client, resource, progress),
        engines={pod.uid: report for pod, report in zip(live, reports, strict=True)},
        quarantined=None
        if said is None
        else {
            pod.uid: found
            for pod in pods
            if (found := said.get((namespace, pod.name, pod.container_id))) is not None
        },
    )


def _snapshot(
    resource: Body,
    *,
    deleting: bool = False,
    children: tuple[Child, ...] = (),
    deployment: Deployment | None = None,
    pods: tuple[Pod, ...] = (),
    workers: tuple[Pod, ...] = (),
    groups_served: bool = True,
    engines: Mapping[str, EngineReport] | None = None,
    quarantined: Mapping[str, Quarantine] | None = None,
    model: ModelObserved | None = None,
) -> Observed:
    metadata = resource["metadata"]
    return Observed(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=resource.get("spec") or {},
        status=resource.get("status") or {},
        deleting=deleting,
        children=children,
        deployment=deployment,
        pods=pods,
        workers=workers,
        groups_served=groups_served,
        engines=engines or {},
        quarantined=quarantined,
        model=model,
    )


def to_deployment(body: Mapping[str, Any] | None) -> Deployment | None:
    """Return the status of a Deployment."""
    if body is None:
        return None
    status = body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    failure = conditions.get("ReplicaFailure", {})
    progressing = conditions.get("Progressing", {})
    exceeded = progressing.get("reason") == "ProgressDeadlineExceeded"
    return Deployment(
        replica_failure=failure.get("message", "") if failure.get("status") == "True" else "",
        deadline_exceeded=progressing.get("message", "") if exceeded else "",
    )


def to_pod(body: Mapping[str, Any]) -> Pod:
    """Return our view of a pod."""
    metadata = body["metadata"]
    status = body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    container = _engine_status(status.get("containerStatuses") or [])
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP", ""),
        revision=(metadata.get("annotations") or {}).get(TEMPLATE_HASH_ANNOTATION, ""),
        terminating=metadata.get("deletionTimestamp") is not None,
        phase=status.get("phase", "Pending"),
        container_id=container.get("containerID", ""),
        running=state.get("running") is not None,
        container_ready=bool(container.get("ready", False)),
        ready=conditions.get("Ready", {}).get("status") == "True",
        restart_count=container.get("restartCount", 0),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        last_termination=_termination(
            state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        ),
        unschedulable=scheduled.get("message", "") if unschedulable else "",
        gate=_gate(conditions.get(GATE_CONDITION)),
        group=_group(metadata),
    )


def _group(metadata: Mapping[str, Any]) -> Group | None:
    """Return the pod's place in its group by what the LeaderWorkerSet controller wrote on it."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = labels.get(LWS_WORKER_INDEX, "")
    if not index.isdigit():
        return None
    size = notes.get(LWS_SIZE, "")
    return Group(
        key=labels.get(LWS_GROUP_INDEX, ""), index=int(index), size=int(size) if size.isdigit() else 1
    )


def _engine_status(statuses: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((one for one in statuses if one.get("name") == ENGINE_CONTAINER), {})


def _termination(body: Mapping[str, Any] | None) -> Termination | None:
    if not body:
        return None
    return Termination(
        exit_code=body.get("exitCode", 0),
        reason=body.get("reason", ""),
        message=body.get("message", ""),
        finished_at=body.get("finishedAt") or "",
    )


def _gate(condition: Mapping[str, Any] | None) -> Gate | None:
    if condition is None:
        return None
    return Gate(
        status=condition.get("status", "Unknown"),
        reason=condition.get("reason", ""),
        message=condition.get("message", ""),
        changed_at=condition.get("lastTransitionTime") or "",
    )


def _is_owned(body: Mapping[str, Any], uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)
