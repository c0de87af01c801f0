"""Which scheduled steps of which structured requests have not been processed yet.

Pure. Counts steps, never placeholder tokens: speculative decoding reserves 1 + k placeholders a step, so
their number says nothing about the number of steps (the trap of vLLM pull request 45015).
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable

MAX_STEPS = 256
"""Far above any batch queue; a bound only so that a step that upstream never processes cannot leak for
ever."""


class StepLedger:
    """Outstanding sampling steps, oldest first.

    A step is "outstanding" for a request from when it was scheduled to sample a token for it until its
    output was given to the scheduler, which is where the request's grammar advances. A chunk of a prefill
    samples nothing and is no such step.
    """

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, frozenset[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def scheduled(self, step: Hashable, request_ids: Collection[str]) -> None:
        """Note that `step` samples a token for each of `request_ids`."""
        self._steps.pop(step, None)
        if request_ids:
            self._steps[step] = frozenset(request_ids)
            if len(self._steps) > MAX_STEPS:
                self._steps.popitem(last=False)

    def processed(self, step: Hashable) -> None:
        """Note that the scheduler has seen the output of `step`."""
        self._steps.pop(step, None)

    def forget(self, request_ids: Collection[str]) -> None:
        """Note that no step scheduled so far will give these requests a token.

        Their outputs are thrown away (the request starts anew), or the ids belong to other requests now.
        """
        gone = frozenset(request_ids)
        if not gone:
            return
        for step, sampled in list(self._steps.items()):
            if not gone.isdisjoint(sampled):
                if left := sampled - gone:
                    self._steps[step] = left
                else:
                    del self._steps[step]

    def requests_of(self, step: Hashable) -> frozenset[str]:
        """Return the structured requests for which `step` samples; empty for an unknown or plain step."""
        return self._steps.get(step, frozenset())

    def behind(self, step: Hashable) -> frozenset[str]:
        """Return the requests of `step` with an earlier step outstanding: their mask would be stale."""
        waiting = self.requests_of(step)
        found: set[str] = set()
        for other, request_ids in self._steps.items():
            if other == step:
                break
            found |= waiting & request_ids
        return frozenset(found)
