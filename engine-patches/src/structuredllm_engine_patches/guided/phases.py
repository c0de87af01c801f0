"""Which decodes go into the next step, so that a pipeline's stages all have work. Pure.

A request can have one decode step in flight at a time: its next token needs the one before. A pipeline of
`depth` stages is full only when the requests are spread over `depth` steps. A burst is prefilled together,
so upstream keeps all of it in one step for ever (vLLM RFC 50853): one stage works while the others wait.
"""

from collections.abc import Sequence


class PhasePlan:
    """Takes an equal share of the decodes into each step, longest waiting first.

    Nothing is kept but since when each request that is ready has been waiting, so finished, aborted and
    preempted requests leave no trace, and shares follow the number of requests at once.
    """

    def __init__(self, depth: int) -> None:
        """Plan for a pipeline of `depth` stages.

        Raises:
            ValueError: depth is not positive.
        """
        if depth < 1:
            raise ValueError(f"a pipeline has at least one stage, not {depth}")
        self.depth = depth
        self._calls = 0
        self._ready_since: dict[str, int] = {}

    def choose(self, ready: Sequence[str], in_flight: int) -> frozenset[str]:
        """Return the requests of `ready` that may decode in the next step.

        Args:
            ready: ids of the requests whose next decode may be scheduled, in the scheduler's order.
            in_flight: how many more requests decode but have a step in flight.

        Returns:
            At most `share(len(ready) + in_flight)` ids; of several that could go, those that have been ready
            for the longest time.
        """
        self._calls += 1
        self._ready_since = {name: self._ready_since.get(name, self._calls) for name in ready}
        share = self.share(len(ready) + in_flight)
        if len(ready) <= share:
            return frozenset(ready)
        return frozenset(sorted(ready, key=self._ready_since.__getitem__)[:share])

    def share(self, decodes: int) -> int:
        """Return how many of `decodes` requests one step takes: a depth-th, rounded up."""
        return -(-decodes // self.depth)
