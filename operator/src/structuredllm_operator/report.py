"""From what was observed and planned to status and events. Pure: the time comes in as RFC 3339 text.

Rules (Kubernetes API conventions, metav1.Condition): `lastTransitionTime` moves only with `status`; every
condition carries `observedGeneration`; a condition that does not apply is absent; an equal status is not
written again.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from structuredllm_operator.api import conditions as api
from structuredllm_operator.api.conditions import FALSE, TRUE, UNKNOWN, Condition, Reason, truncate
from structuredllm_operator.api.labels import HTTP_PORT, selector_string
from structuredllm_operator.api.names import child_name, gate_text
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec, WarmupPolicy
from structuredllm_operator.plan.failures import Failure
from structuredllm_operator.plan.gate import GateWrite
from structuredllm_operator.plan.known_bad import find_risks, spec_warning
from structuredllm_operator.plan.leader_worker_set import is_multi_node
from structuredllm_operator.plan.model_ready import held_workload
from structuredllm_operator.plan.observed import EngineInfo, Gate, Observed, Pod
from structuredllm_operator.plan.plan import Plan
from structuredllm_operator.plan.quarantine import quarantined
from structuredllm_operator.plan.topology import Finding
from structuredllm_operator.report_groups import (
    ended_groups,
    find_failures,
    made_anew,
    missing_kind,
    nothing_exists,
)

_GATE_FAILURES: Final = (
    Reason.GRAMMAR_REJECTED,
    Reason.SCHEMA_INVALID,
    Reason.PROBE_TIMEOUT,
    Reason.ENGINE_UNREACHABLE,
    Reason.INCONCLUSIVE,
)
_GATE_ORDER: Final = (
    *_GATE_FAILURES,
    Reason.PATCH_MISSING,
    Reason.TOPOLOGY_MISMATCH,
    Reason.GROUP_INCOMPLETE,
    Reason.RESTARTED_SINCE_PROBE,
    Reason.PROBE_RUNNING,
    Reason.WAITING_FOR_CONTAINERS,
)
_WORKLOAD_ORDER: Final = (
    Reason.CRASH_LOOP,
    Reason.ENGINE_CRASHED,
    Reason.IMAGE_PULL_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.REPLICA_FAILURE,
    Reason.PENDING,
)
_PASSING: Final = frozenset(
    {
        Reason.PENDING,
        *_GATE_ORDER[-3:],
        Reason.NOT_REPORTED,
        Reason.NONE_QUARANTINED,
        Reason.DOWNLOADING,
        Reason.PVC_PENDING,
    }
)
"""Reasons that time alone can cure: they do not outrank a real failure."""

_GATE_CURES: Final[Mapping[str, str]] = {
    Reason.GRAMMAR_REJECTED: (
        "set spec.engine.patches to Required with an image that holds the engine patches, or"
        " spec.engine.asyncScheduling to false"
    ),
    Reason.SCHEMA_INVALID: "check spec.structuredOutput.backend and the engine's arguments",
    Reason.PROBE_TIMEOUT: "raise spec.warmup.timeoutSeconds, or make spec.warmup.burst smaller",
    Reason.ENGINE_UNREACHABLE: "check network policies between the operator and port 8000 of the pod",
}


@dataclass(frozen=True)
class EventNote:
    """An Event about the resource, without time and name."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """The status to have, whether it differs from the one there, and the transitions to announce."""

    status: Mapping[str, Any]
    changed: bool
    events: tuple[EventNote, ...]

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return any(one["type"] == api.READY and one["status"] == TRUE for one in self.status["conditions"])

    @property
    def gate_failing(self) -> bool:
        """Whether StructuredReady is False because bursts failed."""
        return any(
            one["type"] == api.STRUCTURED_READY and one["status"] == FALSE and one["reason"] in _GATE_FAILURES
            for one in self.status["conditions"]
        )


def make_report(observed: Observed, plan: Plan, *, now: str, gateway_url: str = "") -> Report:
    """Return status and events for a resource that is not being deleted.

    Args:
        observed: what was read.
        plan: what was decided from it; its gate writes count as done.
        now: RFC 3339 time for what changed.
        gateway_url: where clients reach the gateway; without one the engine's own Service is named.
    """
    pods = [_after_write(pod, plan.gate_writes) for pod in observed.pods if _counts(pod)]
    current = [pod for pod in pods if pod.revision == plan.revision]
    found = list(_conditions(observed, plan, pods, current, now))
    old = observed.status.get("conditions", [])
    merged = api.merge(old, found, generation=observed.generation, now=now)
    status: dict[str, Any] = {
        "observedGeneration": observed.generation,
        "url": gateway_url or f"http://{child_name(observed.name)}.{observed.namespace}.svc:{HTTP_PORT}",
        "selector": selector_string(observed.name),
        "replicas": len(pods),
        "readyReplicas": sum(pod.engine_ready for pod in pods),
        "servingReplicas": sum(pod.serving for pod in pods),
        "updatedReplicas": len(current) if plan.revision else 0,
        "conditions": merged,
    }
    if plan.revision:
        status["currentRevision"] = plan.revision
    info = _first_info(observed, current)
    if info is not None:
        status["engine"] = _engine_status(info)
    # Where nothing was decided, what is known of a copy stays true.
    undecided = plan.spec is None or plan.conflicts
    model = observed.status.get("model") if undecided else plan.model.status
    if model is not None:
        status["model"] = dict(model)
    failure = _last_failure(observed, pods, now)
    if failure is not None:
        status["lastFailure"] = failure
    return Report(status=status, changed=status != dict(observed.status), events=_events(old, merged))


def _counts(pod: Pod) -> bool:
    return not pod.terminating and pod.phase not in ("Succeeded", "Failed")


def _after_write(pod: Pod, writes: Iterable[GateWrite]) -> Pod:
    for write in writes:
        if write.pod_uid == pod.uid:
            return dataclasses.replace(pod, gate=Gate(write.status, write.reason, write.message))
    return pod


def _conditions(
    observed: Observed, plan: Plan, pods: list[Pod], current: list[Pod], now: str
) -> Iterable[Condition]:
    if plan.spec_error is not None:
        yield Condition(api.SPEC_VALID, FALSE, plan.spec_error.reason, plan.spec_error.message)
        yield Condition(
            api.READY,
            FALSE,
            Reason.INVALID_SPEC,
            f"nothing is changed until the spec is valid: {plan.spec_error.message}",
        )
        return
    spec = plan.spec
    if spec is None:
        return
    yield Condition(api.SPEC_VALID, TRUE, Reason.ACCEPTED, "the spec was accepted and rendered")
    risks = spec_warning(find_risks(spec, _versions(observed, current)))
    if risks is not None:
        yield risks
    if plan.conflicts:
        text = (
            f"{', '.join(plan.conflicts)} {child_name(observed.name)} exists and is not controlled by"
            " this resource:"
            " delete or rename it, or name this resource differently"
        )
        yield Condition(api.WORKLOAD_READY, FALSE, Reason.NAME_CONFLICT, text)
        yield Condition(api.READY, FALSE, Reason.NAME_CONFLICT, text)
        return
    if plan.missing_kind:
        yield from missing_kind(plan.missing_kind)
        return
    parts = [plan.model.condition] if plan.model.condition is not None else []
    held = plan.model.held and not current
    parts.append(held_workload() if held else _workload(observed, plan, spec, current, now))
    if spec.replicas > 0:
        parts += [_topology(plan.topology, current)] if spec.engine.reports_itself else []
        parts.append(_structured(spec, current))
    yield from parts
    serving = sum(pod.serving for pod in current)
    yield _ready(spec, parts, serving)
    yield _progressing(observed, spec, len(pods), len(current), serving)
    if observed.quarantined is not None:
        yield quarantined(pods, observed.quarantined)


def _workload(
    observed: Observed, plan: Plan, spec: StructuredLLMSpec, current: list[Pod], now: str
) -> Condition:
    ready = sum(pod.engine_ready for pod in current)
    if ready >= spec.replicas:
        return Condition(
            api.WORKLOAD_READY,
            TRUE,
            Reason.CONTAINERS_READY,
            f"{ready} of {spec.replicas} pods have ready containers",
        )
    workers = [pod for pod in observed.workers if _counts(pod) and pod.revision == plan.revision]
    failures = find_failures(current, workers)
    if failures:
        first = min(failures, key=lambda failure: _WORKLOAD_ORDER.index(failure.reason))
        return Condition(api.WORKLOAD_READY, FALSE, first.reason, f"pod {first.pod}: {first.message}")
    if observed.deployment is not None and observed.deployment.replica_failure:
        text = f"pods cannot be made: {observed.deployment.replica_failure}"
        return Condition(api.WORKLOAD_READY, FALSE, Reason.REPLICA_FAILURE, text)
    if is_multi_node(spec) and (anew := made_anew(observed, ready, spec.replicas, now)) is not None:
        return anew
    return Condition(
        api.WORKLOAD_READY,
        FALSE,
        Reason.PENDING,
        f"{ready} of {spec.replicas} pods have ready containers; the others are starting or loading the"
        f" model{nothing_exists(observed, current)}",
    )


def _topology(findings: Mapping[str, Finding], current: list[Pod]) -> Condition:
    known = [(pod, findings[pod.uid]) for pod in current if pod.uid in findings]
    for status in (FALSE, UNKNOWN):
        for pod, finding in known:
            if finding.status == status:
                return Condition(
                    api.TOPOLOGY_VERIFIED, status, finding.reason, f"pod {pod.name}: {finding.message}"
                )
    if not known:
        return Condition(api.TOPOLOGY_VERIFIED, UNKNOWN, Reason.NOT_REPORTED, "no engine is up yet")
    return Condition(api.TOPOLOGY_VERIFIED, TRUE, known[0][1].reason, known[0][1].message)


def _structured(spec: StructuredLLMSpec, current: list[Pod]) -> Condition:
    if spec.warmup.policy is WarmupPolicy.DISABLED:
        return Condition(
            api.STRUCTURED_READY, TRUE, Reason.DISABLED, "no burst is sent: spec.warmup.policy is Disabled"
        )
    verdicts = [_gate_verdict(pod) for pod in current]
    passed = sum(reason == Reason.BURST_PASSED for reason, _ in verdicts)
    if passed >= spec.replicas and passed == len(current):
        return Condition(api.STRUCTURED_READY, TRUE, Reason.BURST_PASSED, _passed_message(passed, current))
    for wanted in _GATE_ORDER:
        for pod, (reason, text) in zip(current, verdicts, strict=True):
            if reason == wanted:
                cure = f"; {_GATE_CURES[reason]}" if reason in _GATE_CURES else ""
                return Condition(
                    api.STRUCTURED_READY,
                    FALSE,
                    reason,
                    f"{passed} of {spec.replicas} pods passed; pod {pod.name}: {text}{cure}",
                )
    return Condition(
        api.STRUCTURED_READY,
        FALSE,
        Reason.WAITING_FOR_CONTAINERS,
        f"{passed} of {spec.replicas} pods passed; waiting for the containers of the others",
    )


def _passed_message(passed: int, current: list[Pod]) -> str:
    gate = current[0].gate
    text = gate_text(gate.message) if gate is not None else ""
    return (
        text if passed == 1 else f"{passed} pods passed the cold structured burst; {current[0].name}: {text}"
    )


def _gate_verdict(pod: Pod) -> tuple[str, str]:
    """Return (reason, text) of a pod's gate, for the container that it has now."""
    if pod.gate is None or not pod.container_id:
        return Reason.WAITING_FOR_CONTAINERS, "waiting for its containers"
    if pod.gate.container_id != pod.container_id:
        return Reason.RESTARTED_SINCE_PROBE, "the engine container restarted and must pass a new burst"
    if pod.gate.reason == Reason.BURST_PASSED and not pod.container_ready:
        return Reason.WAITING_FOR_CONTAINERS, "it passed, but its containers are not ready now"
    if pod.gate.reason in _GATE_ORDER or pod.gate_open:
        return pod.gate.reason, gate_text(pod.gate.message)
    return Reason.INCONCLUSIVE, gate_text(pod.gate.message)


def _ready(spec: StructuredLLMSpec, parts: Sequence[Condition], serving: int) -> Condition:
    if spec.replicas == 0:
        return Condition(api.READY, TRUE, Reason.SCALED_TO_ZERO, "spec.replicas is 0: nothing is asked for")
    needed = [part for part in parts if _is_needed(spec, part) and not part.is_true]
    if needed:
        hard = [part for part in needed if part.reason not in _PASSING]
        chosen = (hard or needed)[0]
        return Condition(
            api.READY, FALSE, chosen.reason, f"{serving} of {spec.replicas} pods serve; {chosen.message}"
        )
    if serving < spec.replicas:
        return Condition(
            api.READY,
            FALSE,
            Reason.INSUFFICIENT_CAPACITY,
            f"{serving} of {spec.replicas} pods of the current revision serve",
        )
    return Condition(api.READY, TRUE, Reason.ALL_SERVING, f"{serving} of {spec.replicas} pods serve")


def _is_needed(spec: StructuredLLMSpec, part: Condition) -> bool:
    if part.type == api.TOPOLOGY_VERIFIED:
        return spec.engine.needs_patches
    if part.type == api.STRUCTURED_READY:
        return spec.warmup.policy is WarmupPolicy.REQUIRED
    return True


def _progressing(
    observed: Observed, spec: StructuredLLMSpec, pods: int, current: int, serving: int
) -> Condition:
    if serving >= spec.replicas and pods == current == spec.replicas:
        return Condition(
            api.PROGRESSING, FALSE, Reason.ROLLOUT_COMPLETE, "all pods are of the current revision"
        )
    if observed.deployment is not None and observed.deployment.deadline_exceeded:
        text = observed.deployment.deadline_exceeded
        return Condition(api.PROGRESSING, FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, text)
    return Condition(
        api.PROGRESSING,
        TRUE,
        Reason.ROLLOUT_IN_PROGRESS,
        f"{current} pods of the current revision, {serving} of them serving, {max(pods - current, 0)}"
        " older pods",
    )


def _versions(observed: Observed, current: list[Pod]) -> Iterable[str]:
    reports = (observed.engines.get(pod.uid) for pod in current)
    return [report.info.vllm_version for report in reports if report is not None and report.info is not None]


def _first_info(observed: Observed, current: list[Pod]) -> EngineInfo | None:
    for pod in current:
        report = observed.engines.get(pod.uid)
        if report is not None and report.info is not None:
            return report.info
    return None


def _engine_status(info: EngineInfo) -> dict[str, Any]:
    return {
        "vllmVersion": info.vllm_version,
        "patches": sorted(patch.id for patch in info.patches if patch.state == "active"),
        "worldSize": info.world_size,
        "pipeline": info.pipeline,
        "tensor": info.tensor,
        "asyncScheduling": info.async_scheduling,
    }


def _last_failure(observed: Observed, pods: list[Pod], now: str) -> Mapping[str, Any] | None:
    previous: Mapping[str, Any] | None = observed.status.get("lastFailure")
    workers = [pod for pod in observed.workers if _counts(pod)]
    failures = ended_groups(observed) + find_failures(pods, workers)
    failures.sort(key=lambda failure: _WORKLOAD_ORDER.index(failure.reason))
    failures += [
        Failure(pod.name, pod.gate.reason, gate_text(pod.gate.message), pod.gate.changed_at)
        for pod in pods
        if pod.gate is not None and pod.gate.status == FALSE and pod.gate.reason in _GATE_FAILURES
    ]
    if not failures:
        return previous
    first = failures[0]
    entry = {"pod": first.pod, "reason": first.reason, "message": truncate(first.message)}
    if previous is not None and {key: previous.get(key) for key in entry} == entry:
        # A failure without a time of its own keeps the time at which it was first seen.
        return {**entry, "time": first.time or previous.get("time", now)}
    return {**entry, "time": first.time or now}


def _events(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> tuple[EventNote, ...]:
    before = {one.get("type"): (one.get("status"), one.get("reason")) for one in old}
    notes = []
    for one in new:
        if before.get(one["type"]) == (one["status"], one["reason"]):
            continue
        if one["type"] not in before and one["reason"] in _PASSING:
            continue
        bad = TRUE if one["type"] in (api.QUARANTINED, api.SPEC_WARNING) else FALSE
        warning = one["status"] == bad and one["reason"] not in (*_PASSING, Reason.ROLLOUT_COMPLETE)
        notes.append(
            EventNote(
                "Warning" if warning else "Normal",
                one["reason"],
                truncate(f"{one['type']} is {one['status']}: {one['message']}"),
            )
        )
    return tuple(notes)
