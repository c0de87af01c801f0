"""Requests that came before any replica of their model was ready: who came first goes first.

Owns the waiting room: bounded in number and time; a waiter that is cancelled leaves at once. Knows nothing of
replicas: whoever does calls `wake`.
"""

from __future__ import annotations

import asyncio


class WaitingRoom:
    """Waiters by model."""

    def __init__(self, max_waiting: int) -> None:
        """Start empty; `max_waiting` is for all models together, 0 = nobody may wait."""
        self._max = max_waiting
        # A dict keeps the order of arrival and lets one leave from the middle at once.
        self._queues: dict[str, dict[asyncio.Future[None], None]] = {}
        self.count = 0

    def waiting(self, model: str) -> int:
        """Return how many wait for `model`."""
        return len(self._queues.get(model, ()))

    async def wait(self, model: str, seconds: float) -> bool:
        """Wait to be woken; False when there is no room or the time is over.

        Raises:
            asyncio.CancelledError: the client went away; the place is free again.
        """
        if self.count >= self._max or seconds <= 0:
            return False
        place = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(model, {})
        queue[place] = None
        self.count += 1
        try:
            async with asyncio.timeout(seconds):
                await place
        except TimeoutError:
            return False
        finally:
            self.count -= 1
            queue.pop(place, None)
            if not queue and self._queues.get(model) is queue:
                del self._queues[model]
        return True

    def wake(self, model: str) -> None:
        """Let all that wait for `model` go on, in the order in which they came."""
        for place in self._queues.get(model, ()):
            if not place.done():
                place.set_result(None)

    def models(self) -> frozenset[str]:
        """Return the models that somebody waits for."""
        return frozenset(self._queues)
