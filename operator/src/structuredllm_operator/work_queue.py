"""A queue of keys: each key is worked on by one worker at a time, and waits at most once.

Owns coalescing, delays, retry backoff and their bounds. The number of entries is bounded by the number of
resources. Knows nothing of Kubernetes. The pattern is client-go's workqueue: add, done, and "dirty while
processing".
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from structuredllm_operator.errors import OperatorError

KeyT = TypeVar("KeyT", bound=Hashable)

_LOGGER = logging.getLogger(__name__)

FIRST_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 60.0


class WorkQueue(Generic[KeyT]):
    """Runs `work(key)` for added keys. `work` returns the seconds after which to come back, or None.

    Args:
        work: what to do for one key; an exception is logged and tried again with backoff.
        workers: keys worked on at the same time.
        jitter: returns a factor around 1 for delays, injected so that tests are exact.
    """

    def __init__(
        self,
        work: Callable[[KeyT], Awaitable[float | None]],
        *,
        workers: int,
        jitter: Callable[[], float],
    ) -> None:
        self._work = work
        self._workers = workers
        self._jitter = jitter
        self._ready: asyncio.Queue[KeyT] = asyncio.Queue()
        self._waiting: set[KeyT] = set()
        self._busy: set[KeyT] = set()
        self._dirty: set[KeyT] = set()
        self._failures: dict[KeyT, int] = {}
        self._timers: dict[KeyT, asyncio.TimerHandle] = {}

    def add(self, key: KeyT) -> None:
        """Ask for work on a key now. One that waits stays as it is; one being worked on runs once more."""
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: KeyT, seconds: float) -> None:
        """Ask for work on a key later. An earlier time that is already set for it stays."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        current = self._timers.get(key)
        if current is not None:
            if current.when() <= due:
                return
            current.cancel()
        self._timers[key] = loop.call_at(due, self._fire, key)

    def forget(self, key: KeyT) -> None:
        """Drop delays and failure counts of a key that is gone."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._worker())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _fire(self, key: KeyT) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._attempt(key)
            finally:
                self._busy.discard(key)
                if key in self._dirty:
                    self._dirty.discard(key)
                    self.add(key)

    async def _attempt(self, key: KeyT) -> None:
        try:
            again = await self._work(key)
        except Exception as error:
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
            delay = retry_delay(failures) * self._jitter()
            # An error raised on purpose says all in its text; for another one the trace is needed.
            trace = not isinstance(error, OperatorError)
            words = "work on %s failed (%d times), next try in %.1f s: %s"
            _LOGGER.warning(words, key, failures, delay, error, exc_info=trace)
            self.add_after(key, delay)
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add_after(key, again * self._jitter())


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after the given number of failures in a row: doubles, bounded."""
    return float(min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16)))
