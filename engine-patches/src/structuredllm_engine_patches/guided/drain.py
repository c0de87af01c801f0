"""How many queued batches have to be processed before a mask may be built. Pure.

The rule: a mask of a structured request may be built only when every earlier step that sampled a token for
it has been given to its grammar. Upstream pops exactly one batch, which is enough only while the oldest
queued batch happens to be the request's previous step (vLLM issue 45014).
"""

from collections.abc import Collection, Sequence


def batches_to_drain(waiting: Collection[str], queued: Sequence[Collection[str]]) -> int:
    """Return how many batches to process, counted from the oldest.

    Args: waiting: ids of the structured requests whose mask is wanted. queued: for every batch in the
        queue, oldest first, the ids of the structured requests for which it samples a
            token; empty for a batch of plain requests, of prefill chunks, or with nothing scheduled.

    Returns: A number from 0 to `len(queued)`. Batches older than the newest one that matters count too,
        because a queue can only be processed in order.
    """
    wanted = frozenset(waiting)
    for position in range(len(queued) - 1, -1, -1):
        if not wanted.isdisjoint(queued[position]):
            return position + 1
    return 0
