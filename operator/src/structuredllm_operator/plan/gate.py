"""Decides, per pod, what the readiness gate says and whether a cold structured burst is due. Pure.

The gate speaks of one container: its message starts with `[containerID]`. A container that passed is never
asked again, also not by an operator that was restarted, because the proof is on the pod. A container that
replaced it is cold, so its gate closes at once and a new burst is due when it is ready.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from structuredllm_operator.api.conditions import FALSE, TRUE, Reason, truncate
from structuredllm_operator.api.labels import HTTP_PORT
from structuredllm_operator.api.names import gate_message
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec, WarmupPolicy
from structuredllm_operator.plan.engine_args import served_name
from structuredllm_operator.plan.observed import Observed, Pod
from structuredllm_operator.plan.topology import Finding

MAX_BACKOFF_SECONDS: Final = 600.0

RunKey = tuple[str, str]
"""(pod uid, containerID): what one burst proves something about."""


@dataclass(frozen=True)
class BurstResult:
    """What a burst found. `passed` is verdict healthy; verdict, reason and message are the probe's."""

    passed: bool
    reason: str
    message: str
    verdict: str = "unknown"


@dataclass(frozen=True)
class GateRun:
    """What the runner knows of one container: bursts finished, the last result, and whether one is under way.

    `finished_at` is on the runner's monotonic clock, in seconds. `generation` is the resource's at the first
    burst; a changed spec gives a failed container new attempts.
    """

    generation: int
    attempts: int = 0
    running: bool = False
    last: BurstResult | None = None
    finished_at: float = 0.0


@dataclass(frozen=True)
class BurstOrder:
    """Everything needed to send one burst."""

    namespace: str
    name: str
    pod_name: str
    pod_uid: str
    container_id: str
    base_url: str
    model: str
    requests: int
    concurrency: int
    timeout_seconds: float
    seed: str
    generation: int
    attempt: int

    @property
    def key(self) -> RunKey:
        """What the burst proves something about."""
        return self.pod_uid, self.container_id


@dataclass(frozen=True)
class GateWrite:
    """A pod condition to write."""

    pod_name: str
    pod_uid: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class GateDecision:
    """For one pod: the condition to write (None: it is right), the burst to start, and when to look again."""

    write: GateWrite | None = None
    start: BurstOrder | None = None
    look_again_seconds: float | None = None


def decide(
    observed: Observed,
    spec: StructuredLLMSpec | None,
    pod: Pod,
    topology: Finding,
    runs: Mapping[RunKey, GateRun],
    now: float,
) -> GateDecision:
    """Decide for one pod.

    Args:
        observed: the resource that the pod belongs to.
        spec: its spec, or None when that is invalid: then gates only close.
        pod: the pod.
        topology: what `topology.verify` said of this pod's engine.
        runs: the runner's knowledge.
        now: the runner's monotonic clock, in seconds.
    """
    if pod.terminating:
        return GateDecision()
    if pod.group_problem and pod.live_container:
        return GateDecision(write=_write(pod, FALSE, Reason.GROUP_INCOMPLETE, pod.group_problem))
    container = pod.live_container
    if not container or spec is None:
        return GateDecision(write=_close_stale(pod))
    if spec.warmup.policy is WarmupPolicy.DISABLED:
        return GateDecision(
            write=_write(pod, TRUE, Reason.DISABLED, "no burst: spec.warmup.policy is Disabled")
        )
    if pod.gate_open and pod.gate is not None and pod.gate.reason == Reason.BURST_PASSED:
        return GateDecision()
    if spec.engine.needs_patches and topology.status != TRUE:
        return _hold(pod, topology)
    return _burst(observed, spec, pod, runs.get((pod.uid, container)), now)


def _hold(pod: Pod, topology: Finding) -> GateDecision:
    """No burst before the engine is what the spec asks for: an engine without its patches is never Ready."""
    if topology.status != FALSE:
        return GateDecision(write=_close_stale(pod), look_again_seconds=2.0)
    reason = Reason.PATCH_MISSING if topology.reason == Reason.PATCH_MISSING else Reason.TOPOLOGY_MISMATCH
    return GateDecision(write=_write(pod, FALSE, reason, topology.message), look_again_seconds=10.0)


def _burst(
    observed: Observed, spec: StructuredLLMSpec, pod: Pod, run: GateRun | None, now: float
) -> GateDecision:
    if run is not None and run.running:
        # A repeated burst keeps the failure on show; a gate that BestEffort opened stays open.
        held_open = spec.warmup.policy is WarmupPolicy.BEST_EFFORT and pod.gate_open
        if held_open or run.last is not None:
            return GateDecision(write=_close_stale(pod))
        text = f"cold structured burst of {spec.warmup.burst.requests} requests under way"
        return GateDecision(write=_write(pod, FALSE, Reason.PROBE_RUNNING, text))
    if run is None or run.last is None:
        return GateDecision(write=_close_stale(pod), start=_order(observed, spec, pod, attempt=1))
    if run.last.passed:
        return GateDecision(write=_write(pod, TRUE, Reason.BURST_PASSED, run.last.message))
    return _after_failure(observed, spec, pod, run, run.last, now)


def _after_failure(
    observed: Observed, spec: StructuredLLMSpec, pod: Pod, run: GateRun, last: BurstResult, now: float
) -> GateDecision:
    attempts = run.attempts if run.generation == observed.generation else 0
    status = TRUE if spec.warmup.policy is WarmupPolicy.BEST_EFFORT else FALSE
    left = spec.warmup.max_retries + 1 - attempts
    if left <= 0:
        text = f"{last.message} (given up after {attempts} bursts; change the spec or restart the pod)"
        return GateDecision(write=_write(pod, status, last.reason, text))
    if attempts == 0:
        return GateDecision(start=_order(observed, spec, pod, attempt=1))
    text = f"{last.message} (burst {attempts} of {spec.warmup.max_retries + 1})"
    due = run.finished_at + backoff_seconds(spec.warmup.retry_backoff_seconds, attempts)
    write = _write(pod, status, last.reason, text)
    if now < due:
        return GateDecision(write=write, look_again_seconds=due - now)
    return GateDecision(write=write, start=_order(observed, spec, pod, attempt=attempts + 1))


def backoff_seconds(base: float, attempts: int) -> float:
    """Return the wait after the given number of failed bursts: doubles each time, bounded."""
    return min(MAX_BACKOFF_SECONDS, base * 2.0 ** min(attempts - 1, 16))


def pod_url(ip: str) -> str:
    """Return the base URL of the engine on a pod's IP."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{HTTP_PORT}"


def _order(observed: Observed, spec: StructuredLLMSpec, pod: Pod, *, attempt: int) -> BurstOrder | None:
    if not pod.ip:
        return None
    return BurstOrder(
        namespace=observed.namespace,
        name=observed.name,
        pod_name=pod.name,
        pod_uid=pod.uid,
        container_id=pod.container_id,
        base_url=pod_url(pod.ip),
        model=served_name(spec, observed.name),
        requests=spec.warmup.burst.requests,
        concurrency=spec.warmup.burst.concurrency,
        timeout_seconds=float(spec.warmup.timeout_seconds),
        # Schemas are made from the seed: another container, generation or attempt must not see known ones.
        seed=f"{pod.uid}/{pod.container_id}/{observed.generation}/{attempt}",
        generation=observed.generation,
        attempt=attempt,
    )


def _close_stale(pod: Pod) -> GateWrite | None:
    """Close a gate that speaks of a container which is no longer the pod's."""
    if pod.gate is None or not pod.container_id or pod.gate.container_id == pod.container_id:
        return None
    return _write(
        pod,
        FALSE,
        Reason.RESTARTED_SINCE_PROBE,
        "the engine container restarted; it is cold again and must pass a new burst",
    )


def _write(pod: Pod, status: str, reason: str, text: str) -> GateWrite | None:
    message = truncate(gate_message(pod.container_id, text))
    if pod.gate is not None and (pod.gate.status, pod.gate.reason, pod.gate.message) == (
        status,
        reason,
        message,
    ):
        return None
    return GateWrite(pod_name=pod.name, pod_uid=pod.uid, status=status, reason=reason, message=message)
