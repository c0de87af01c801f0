"""Conditions of a `StructuredLLM`: types, reasons, and how new ones replace old ones.

Pure. Time comes in as text. Reasons are a stable contract: users and alerts match on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SPEC_VALID: Final = "SpecValid"
MODEL_READY: Final = "ModelReady"
WORKLOAD_READY: Final = "WorkloadReady"
TOPOLOGY_VERIFIED: Final = "TopologyVerified"
STRUCTURED_READY: Final = "StructuredReady"
READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
QUARANTINED: Final = "Quarantined"
"""Abnormal when True; absent when no gateway answers."""
SPEC_WARNING: Final = "SpecWarning"
"""Abnormal when True: the spec is valid, but known to go wrong; absent otherwise."""
ORDER: Final = (
    SPEC_VALID,
    MODEL_READY,
    WORKLOAD_READY,
    TOPOLOGY_VERIFIED,
    STRUCTURED_READY,
    READY,
    PROGRESSING,
    QUARANTINED,
    SPEC_WARNING,
)

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

MAX_MESSAGE: Final = 1024
"""Longest message written to a condition or an event, in characters."""


class Reason:
    """Condition reasons. The gate's own are shared with the probe and the gateway."""

    # SpecValid
    ACCEPTED: Final = "Accepted"
    INVALID_SPEC: Final = "InvalidSpec"
    GPU_COUNT_MISMATCH: Final = "GPUCountMismatch"
    INVALID_PARALLELISM: Final = "InvalidParallelism"
    # SpecValid (False: it cannot start) and SpecWarning
    KNOWN_BAD_COMBINATION: Final = "KnownBadCombination"
    UNSUPPORTED_ENGINE: Final = "UnsupportedEngine"
    # WorkloadReady
    CONTAINERS_READY: Final = "ContainersReady"
    NAME_CONFLICT: Final = "NameConflict"
    CRASH_LOOP: Final = "CrashLoop"
    ENGINE_CRASHED: Final = "EngineCrashed"
    IMAGE_PULL_FAILED: Final = "ImagePullFailed"
    UNSCHEDULABLE: Final = "Unschedulable"
    REPLICA_FAILURE: Final = "ReplicaFailure"
    PENDING: Final = "Pending"
    CRD_MISSING: Final = "CRDMissing"
    # TopologyVerified
    VERIFIED: Final = "Verified"
    PATCH_MISSING: Final = "PatchMissing"
    WORLD_SIZE_MISMATCH: Final = "WorldSizeMismatch"
    ASYNC_MISMATCH: Final = "AsyncMismatch"
    NOT_REPORTED: Final = "NotReported"
    # The gate
    BURST_PASSED: Final = "BurstPassed"
    PROBE_RUNNING: Final = "ProbeRunning"
    GRAMMAR_REJECTED: Final = "GrammarRejected"
    SCHEMA_INVALID: Final = "SchemaInvalid"
    PROBE_TIMEOUT: Final = "ProbeTimeout"
    ENGINE_UNREACHABLE: Final = "EngineUnreachable"
    INCONCLUSIVE: Final = "Inconclusive"
    RESTARTED_SINCE_PROBE: Final = "RestartedSinceProbe"
    DISABLED: Final = "Disabled"
    WAITING_FOR_CONTAINERS: Final = "WaitingForContainers"
    TOPOLOGY_MISMATCH: Final = "TopologyMismatch"
    GROUP_INCOMPLETE: Final = "GroupIncomplete"
    # Quarantined
    GRAMMAR_REJECTS: Final = "GrammarRejects"
    SCHEMA_INVALID_RATE: Final = "SchemaInvalidRate"
    UPSTREAM_ERRORS: Final = "UpstreamErrors"
    NONE_QUARANTINED: Final = "NoneQuarantined"
    # Ready and Progressing
    ALL_SERVING: Final = "AllServing"
    SCALED_TO_ZERO: Final = "ScaledToZero"
    INSUFFICIENT_CAPACITY: Final = "InsufficientCapacity"
    ROLLOUT_IN_PROGRESS: Final = "RolloutInProgress"
    ROLLOUT_COMPLETE: Final = "RolloutComplete"
    PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
    # ModelReady
    MODEL_CACHED: Final = "ModelCached"
    MODEL_LOADED: Final = "ModelLoaded"
    DOWNLOADING: Final = "Downloading"
    PVC_PENDING: Final = "PVCPending"
    PVC_MISSING: Final = "PVCMissing"
    AUTH_FAILED: Final = "AuthFailed"
    REVISION_NOT_FOUND: Final = "RevisionNotFound"
    REPOSITORY_NOT_FOUND: Final = "RepositoryNotFound"
    MODEL_NOT_FOUND: Final = "ModelNotFound"
    DISK_FULL: Final = "DiskFull"
    CACHE_NOT_WRITABLE: Final = "CacheNotWritable"
    CHECKSUM_MISMATCH: Final = "ChecksumMismatch"
    HUB_UNREACHABLE: Final = "HubUnreachable"
    NOT_CACHED: Final = "NotCached"
    DOWNLOAD_FAILED: Final = "DownloadFailed"
    DOWNLOADER_MISSING: Final = "DownloaderMissing"


@dataclass(frozen=True)
class Condition:
    """One condition before it has a time: what the operator found now."""

    type: str
    status: str
    reason: str
    message: str

    @property
    def is_true(self) -> bool:
        """Whether the status is True."""
        return self.status == TRUE


def truncate(text: str, limit: int = MAX_MESSAGE) -> str:
    """Cut text to at most `limit` characters, with an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def merge(
    old: Iterable[Mapping[str, Any]], new: Iterable[Condition], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the wire form of `new`.

    `lastTransitionTime` is taken over from `old` unless the status differs; conditions that `new` lacks
    vanish.
    """
    before = {str(condition.get("type")): condition for condition in old}
    merged: list[dict[str, Any]] = []
    for condition in sorted(new, key=lambda one: ORDER.index(one.type)):
        previous = before.get(condition.type, {})
        unchanged = previous.get("status") == condition.status
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": truncate(condition.message),
                "lastTransitionTime": previous.get("lastTransitionTime", now) if unchanged else now,
                "observedGeneration": generation,
            }
        )
    return merged
