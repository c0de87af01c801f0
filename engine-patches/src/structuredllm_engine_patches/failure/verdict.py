"""Which failed calls of a rank end the engine. Pure.

A rank that failed in a forward pass or in sampling has lost its place in the pipeline: its peers wait for
tensors that will never come, and no later step can be right. Any other call (LoRA, profiling, a utility of
`collective_rpc`) is answered by upstream with an error, and the engine goes on.
"""

from enum import StrEnum

FATAL_METHODS = frozenset({"execute_model", "sample_tokens", "execute_dummy_batch"})
"""Calls of every step; `execute_dummy_batch` is the forward pass of an idle data-parallel rank."""


class Verdict(StrEnum):
    """What a rank does after a call of it failed."""

    GO_ON = "go on"
    """Upstream answers the caller; nothing is broken for good."""

    LEAVE = "leave"
    """Nobody reads this rank's answer: its end is the only thing that the executor notices."""

    LEAVE_AFTER_REPLY = "leave after the reply"
    """The executor reads this rank's error and ends the engine; leave a moment later in any case."""


def judge(method: object, *, rank: int, reply_rank: int | None, fault_tolerant: bool) -> Verdict:
    """Return what a rank does after `method` raised in it.

    Args:
        method: name of the worker's method, or serialised code (`bytes`), which is never fatal.
        rank: the rank that failed.
        reply_rank: the only rank whose answer the executor reads; None: it reads all.
        fault_tolerant: upstream's fault tolerance is on: it reads the reply and may recover.
    """
    if method not in FATAL_METHODS:
        return Verdict.GO_ON
    if reply_rank is not None and rank != reply_rank:
        return Verdict.LEAVE
    return Verdict.GO_ON if fault_tolerant else Verdict.LEAVE_AFTER_REPLY
