"""What status says of engines that span several nodes: missing controller, failures of any pod.

Pure. Owns these texts. `report.py` puts them in their place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from structuredllm_operator.api import conditions as api
from structuredllm_operator.api.conditions import FALSE, Condition, Reason
from structuredllm_operator.plan.failures import Failure, find_failure
from structuredllm_operator.plan.groups import causes_first, crash_before_deletion
from structuredllm_operator.plan.observed import Observed, Pod

LWS_CURE: Final = (
    "install LeaderWorkerSet v0.7 or newer (https://lws.sigs.k8s.io/docs/installation/), or set"
    " spec.multiNode.nodeCount to 1"
)

RECENT: Final = timedelta(minutes=10)
"""For so long a crash explains why a group that is made anew is not up."""


def missing_kind(kind: str) -> Iterator[Condition]:
    """Yield the conditions of a resource whose workload the cluster does not know."""
    text = f"the spec needs {kind}, which the cluster does not have: {LWS_CURE}"
    yield Condition(api.WORKLOAD_READY, FALSE, Reason.CRD_MISSING, text)
    yield Condition(api.READY, FALSE, Reason.CRD_MISSING, text)


def find_failures(pods: Iterable[Pod], workers: Iterable[Pod]) -> list[Failure]:
    """Return why pods do not run, workers of groups included; causes before what only follows from them."""
    found = [failure for pod in (*pods, *workers) if (failure := find_failure(pod)) is not None]
    return causes_first(found)


def ended_groups(observed: Observed) -> list[Failure]:
    """Return the crashes for which groups are being made anew; their pods are ending already."""
    pods = (*observed.pods, *observed.workers)
    found = [failure for pod in pods if (failure := crash_before_deletion(pod)) is not None]
    return causes_first(sorted(found, key=lambda failure: failure.time))


def made_anew(observed: Observed, ready: int, replicas: int, now: str) -> Condition | None:
    """Return WorkloadReady for groups that are not up because one of their pods crashed a moment ago.

    Without it the condition would alternate between the crash and Pending as long as a group crashes.
    """
    last: Mapping[str, Any] = observed.status.get("lastFailure") or {}
    crashed = last.get("reason") in (Reason.ENGINE_CRASHED, Reason.CRASH_LOOP)
    if not crashed or not _is_recent(str(last.get("time", "")), now):
        return None
    return Condition(
        api.WORKLOAD_READY,
        FALSE,
        Reason.ENGINE_CRASHED,
        f"{ready} of {replicas} engines are up; a group is made anew as a whole after pod {last.get('pod')}:"
        f" {last.get('message')}",
    )


def nothing_exists(observed: Observed, current: Sequence[Pod]) -> str:
    """Return a sentence part for groups of which no pod exists although they were asked for; else nothing."""
    exists = any(child.kind == "LeaderWorkerSet" for child in observed.children)
    if current or not exists:
        return ""
    return "; no pod was made yet: if it stays so, look whether the LeaderWorkerSet controller runs"


def _is_recent(time: str, now: str) -> bool:
    try:
        return datetime.fromisoformat(now) - datetime.fromisoformat(time) < RECENT
    except ValueError:
        return False
