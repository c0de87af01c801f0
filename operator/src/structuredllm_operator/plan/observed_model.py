"""What the cluster shows of a model's claim and of the Job that fills it, as frozen values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A claim that exists. `phase` is Pending, Bound or Lost."""

    name: str
    uid: str
    phase: str
    owned: bool = False


@dataclass(frozen=True)
class Progress:
    """What a running download says of itself."""

    phase: str
    bytes: int = 0
    total_bytes: int = 0

    @property
    def percent(self) -> int:
        """Return whole percents; a finer step would write the status all the time."""
        return min(100, self.bytes * 100 // self.total_bytes) if self.total_bytes > 0 else 0


@dataclass(frozen=True)
class DownloadPod:
    """The newest pod of a Job. `said` is the JSON object of its termination log; empty when there is none."""

    name: str
    ip: str = ""
    running: bool = False
    unschedulable: str = ""
    waiting_reason: str = ""
    waiting_message: str = ""
    restart_count: int = 0
    exit_code: int | None = None
    end_reason: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    progress: Progress | None = None


@dataclass(frozen=True)
class DownloadJob:
    """A Job that fetches a model. `failed` is why Kubernetes gave it up."""

    name: str
    owned: bool = True
    succeeded: bool = False
    failed: str = ""
    pod: DownloadPod | None = None


@dataclass(frozen=True)
class ModelObserved:
    """Claim and Jobs of one resource; the claim is None when it does not exist."""

    claim: Claim | None = None
    jobs: tuple[DownloadJob, ...] = ()
