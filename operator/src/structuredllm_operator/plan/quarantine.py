"""The condition Quarantined: from what the gateways say of pods. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from structuredllm_operator.api import conditions as api
from structuredllm_operator.api.conditions import FALSE, TRUE, Condition, Reason
from structuredllm_operator.plan.observed import Pod, Quarantine

_GRAMMAR: Final = frozenset({"grammar_rejected", "finish_abnormal"})
_SILENT: Final = frozenset(
    {"connect_error", "timeout", "upstream_5xx", "stream_error", "stream_aborted", "stream_empty"}
)
_RANK: Final = (Reason.GRAMMAR_REJECTS, Reason.SCHEMA_INVALID_RATE, Reason.UPSTREAM_ERRORS)
_SHOWN: Final = 5


def quarantined(pods: Sequence[Pod], said: Mapping[str, Quarantine]) -> Condition:
    """Return the condition: True names the pods, what is kept from them, and why.

    Args:
        pods: those that count, in the order in which they are named.
        said: by pod uid, what the gateways say of the container that runs now.
    """
    kept = [(pod, said[pod.uid]) for pod in pods if pod.uid in said]
    if not kept:
        return Condition(
            api.QUARANTINED, FALSE, Reason.NONE_QUARANTINED, "no gateway keeps requests from a pod"
        )
    reason = min((_reason(one.reason) for _, one in kept), key=_RANK.index)
    shown = "; ".join(
        f"pod {pod.name}: {one.reason} ({'all' if one.covers_all else 'structured'} requests,"
        f" {one.gateways} of {one.asked} gateways)"
        for pod, one in kept[:_SHOWN]
    )
    more = f"; and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
    return Condition(
        api.QUARANTINED,
        TRUE,
        reason,
        f"gateways keep requests from {len(kept)} of {len(pods)} pods: {shown}{more}; a burst decides when"
        " they get them again; if it goes on, look at the pod's log or delete the pod",
    )


def _reason(outcome: str) -> str:
    if outcome in _GRAMMAR:
        return Reason.GRAMMAR_REJECTS
    return Reason.UPSTREAM_ERRORS if outcome in _SILENT else Reason.SCHEMA_INVALID_RATE
