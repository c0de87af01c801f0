"""What the cluster and the engines show at one moment, as frozen values.

`observe.py` fills these; everything else in this folder reads them. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from structuredllm_operator.api.conditions import TRUE
from structuredllm_operator.api.names import gate_container
from structuredllm_operator.plan.observed_model import ModelObserved

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Termination:
    """How the engine container ended last time. `finished_at` is RFC 3339 text."""

    exit_code: int
    reason: str
    message: str
    finished_at: str


@dataclass(frozen=True)
class Gate:
    """The pod condition of the readiness gate as it stands on the pod."""

    status: str
    reason: str
    message: str
    changed_at: str = ""

    @property
    def container_id(self) -> str:
        """The container that the condition speaks of."""
        return gate_container(self.message)


@dataclass(frozen=True)
class Group:
    """A pod's place in a group of pods that are one engine; `index` 0 is the leader.

    `problem` is set on leaders only, by `groups.join`.
    """

    key: str
    index: int
    size: int
    problem: str = ""


@dataclass(frozen=True)
class Pod:
    """One engine pod. `container_id` and the other container fields speak of the container `engine`.

    `group` is None for an engine that is one pod.
    """

    name: str
    uid: str
    ip: str = ""
    revision: str = ""
    terminating: bool = False
    phase: str = "Pending"
    container_id: str = ""
    running: bool = False
    container_ready: bool = False
    ready: bool = False
    restart_count: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    last_termination: Termination | None = None
    unschedulable: str = ""
    gate: Gate | None = None
    group: Group | None = None

    @property
    def group_problem(self) -> str:
        """What its group lacks, as a sentence part; empty when it is whole or the pod is an engine alone."""
        return self.group.problem if self.group is not None else ""

    @property
    def engine_ready(self) -> bool:
        """Whether the engine is up: the container is ready and no other pod of its group is missing."""
        return self.container_ready and not self.group_problem

    @property
    def live_container(self) -> str:
        """The containerID of the engine when it runs and is ready, else an empty string."""
        return self.container_id if self.running and self.container_ready and self.container_id else ""

    @property
    def gate_open(self) -> bool:
        """Whether the gate is True for the container that the pod has now."""
        return (
            self.gate is not None
            and self.gate.status == TRUE
            and self.container_id != ""
            and self.gate.container_id == self.container_id
        )

    @property
    def serving(self) -> bool:
        """Whether clients may be sent here: Ready, not ending, gate open for the running container."""
        return self.ready and not self.terminating and self.gate_open


@dataclass(frozen=True)
class PatchState:
    """One engine patch as the engine reports it.

    `state` is active, skipped, disabled, elsewhere (in another kind of process), or one of the two that the
    patch package decides for a supported version of vLLM: not-needed (it does not have the fault) and
    unavailable (it has, and there is no cure of it yet).
    """

    id: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class EngineInfo:
    """What the engine says of itself at GET :9464/info.

    `async_forced_off` says why the patch package switched asynchronous scheduling off; empty if it did not.
    """

    vllm_version: str
    policy: str
    patches: tuple[PatchState, ...]
    tensor: int
    pipeline: int
    world_size: int
    async_scheduling: bool
    async_forced_off: str = ""


@dataclass(frozen=True)
class EngineReport:
    """Outcome of asking one engine for its info: `info`, or why there is none.

    `refused` means that nothing listens on the telemetry port although the engine is ready: the patch
    package is not in the image. Any other failure (time-out, bad answer) says nothing and is asked again.
    """

    info: EngineInfo | None = None
    refused: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Quarantine:
    """An engine container that gateways keep traffic from.

    Attributes:
        reason: outcome class that was one too many, in the gateway's words.
        covers_all: whether any gateway keeps all requests away, not only structured ones.
        gateways: how many do; `asked` is how many answered.
    """

    reason: str
    covers_all: bool
    gateways: int
    asked: int


@dataclass(frozen=True)
class Child:
    """A child object that exists. `owned` is whether this very resource controls it."""

    kind: str
    owned: bool


@dataclass(frozen=True)
class Deployment:
    """Status of the engine's Deployment. The texts are empty when there is nothing to say."""

    replica_failure: str = ""
    deadline_exceeded: str = ""


@dataclass(frozen=True)
class Observed:
    """Snapshot of one resource, its children, its pods and its engines (by pod uid).

    `pods` are those that answer requests, one per replica; `workers` are the other pods of groups.
    `groups_served` is whether the cluster has LeaderWorkerSets.

    `quarantined` (by pod uid) is what the gateways say of the containers that run now; None when none of them
    answered.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any] = field(default_factory=dict)
    deleting: bool = False
    children: tuple[Child, ...] = ()
    deployment: Deployment | None = None
    pods: tuple[Pod, ...] = ()
    workers: tuple[Pod, ...] = ()
    groups_served: bool = True
    engines: Mapping[str, EngineReport] = field(default_factory=dict)
    quarantined: Mapping[str, Quarantine] | None = None
    model: ModelObserved | None = None
