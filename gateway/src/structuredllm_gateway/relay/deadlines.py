"""Deadlines of many tries over one timer.

Owns what `asyncio.timeout` does, at the price of an entry in a dictionary: nearly every try ends long before
its deadline, and a timer of its own would be set and cancelled for each.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, cast

# Loops may round a timer to the millisecond, so it may come that much too early.
_ROUNDING_SECONDS = 0.001


class Deadlines:
    """The deadlines that run; belongs to the loop that uses it."""

    def __init__(self) -> None:
        """Start with none."""
        self._running: dict[Deadline, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> Deadline:
        """Return a context in which the running task may stay for `seconds`; then it raises TimeoutError."""
        return Deadline(self, seconds)

    def begin(self, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> None:
        """Watch a deadline."""
        self._running[deadline] = None
        timer = self._timer
        if timer is None or loop is not self._loop:
            self._loop = loop
        elif deadline.when >= timer.when():
            return
        else:
            timer.cancel()
        self._timer = loop.call_at(deadline.when, self._look)

    def end(self, deadline: Deadline) -> None:
        """Forget a deadline; the timer is left, it looks and sleeps on."""
        self._running.pop(deadline, None)

    def _look(self) -> None:
        self._timer = None
        loop = cast(asyncio.AbstractEventLoop, self._loop)
        limit = loop.time() + _ROUNDING_SECONDS
        for deadline in [one for one in self._running if one.when <= limit]:
            del self._running[deadline]
            deadline.expire()
        if self._running:
            self._timer = loop.call_at(min(one.when for one in self._running), self._look)


class Deadline:
    """One deadline; a context of the task that enters it."""

    __slots__ = ("_cancelling", "_expired", "_owner", "_seconds", "_task", "when")

    def __init__(self, owner: Deadlines, seconds: float) -> None:
        """Prepare; the time runs from the entry."""
        self._owner = owner
        self._seconds = seconds
        self._expired = False
        self._cancelling = 0
        self.when = 0.0

    def __enter__(self) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        loop = asyncio.get_running_loop()
        self._task = task
        self._cancelling = task.cancelling()
        self.when = loop.time() + self._seconds
        self._owner.begin(self, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.end(self)
        if (
            self._expired
            and self._task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise TimeoutError from error

    def expire(self) -> None:
        """The time is over: interrupt the task."""
        self._expired = True
        self._task.cancel()
