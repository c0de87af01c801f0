"""Puts the pods of multi-node engines together: one leader per group answers for all its pods. Pure.

Owns what a group lacks, and which of its pods' failures is the cause of the others.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.plan.failures import Failure, describe_crash
from structuredllm_operator.plan.observed import Pod

CONSEQUENCES: Final = (
    "the connection to the engine's leader broke",
    "the connection to a rank on another node broke",
)
"""In the last words of a node that ended because another one did (patch p030)."""

_CRASHES: Final = (Reason.ENGINE_CRASHED, Reason.CRASH_LOOP)


def join(pods: Iterable[Pod]) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """Return (pods that answer requests, workers); leaders know what their group lacks."""
    listed = tuple(pods)
    workers = tuple(pod for pod in listed if pod.group is not None and pod.group.index > 0)
    return tuple(_with_problem(pod, workers) for pod in listed if pod not in workers), workers


def _with_problem(pod: Pod, workers: Sequence[Pod]) -> Pod:
    if pod.group is None:
        return pod
    own = [one for one in workers if one.group is not None and one.group.key == pod.group.key]
    running = {one.group.index for one in own if one.group and one.running and not one.terminating}
    missing = [index for index in range(1, pod.group.size) if index not in running]
    if not missing:
        return pod
    names = ", ".join(f"{pod.name}-{index}" for index in missing[:5])
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    text = (
        f"{len(missing)} of the {pod.group.size} pods of its group do not run ({names}{more}); the group is"
        " made anew as a whole"
    )
    return dataclasses.replace(pod, group=dataclasses.replace(pod.group, problem=text))


def crash_before_deletion(pod: Pod) -> Failure | None:
    """Return why a group pod restarted, which is why its group is being deleted; None for any other pod.

    The controller deletes the pods of a group within moments of a restart, and with them what they said.
    """
    if pod.group is None or not pod.terminating or not pod.restart_count or pod.last_termination is None:
        return None
    return Failure(pod.name, Reason.ENGINE_CRASHED, describe_crash(pod), pod.last_termination.finished_at)


def causes_first(failures: Iterable[Failure]) -> list[Failure]:
    """Sort failures so that crashes that only follow from another node's end come after their cause."""
    return sorted(failures, key=_only_follows)


def _only_follows(failure: Failure) -> bool:
    return failure.reason in _CRASHES and any(words in failure.message for words in CONSEQUENCES)
