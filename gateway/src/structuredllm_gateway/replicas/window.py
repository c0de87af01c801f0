"""Counts of the last seconds in a fixed number of cells: constant time, constant memory.

Owns the sliding window that quarantine and the retry budget share. Pure: the time comes in.
"""

from __future__ import annotations

_CELLS = 6


class SlidingWindow:
    """Two sums over about the last `seconds`: `events`, and `weight` of those that carried one.

    The window moves by a sixth at a time, so the sums cover between 5/6 of it and all of it.
    """

    __slots__ = ("_cell", "_cells_per_second", "_events", "_weights", "events", "weight")

    def __init__(self, seconds: float) -> None:
        """Start empty; `seconds` > 0."""
        self._cells_per_second = _CELLS / seconds
        self._events = [0] * _CELLS
        self._weights = [0] * _CELLS
        self._cell = 0
        self.events = 0
        self.weight = 0

    def add(self, now: float, events: int = 1, weight: int = 0) -> None:
        """Count at time `now` (monotonic seconds; an earlier time than the last counts as the last)."""
        cell = int(now * self._cells_per_second)
        if cell > self._cell:
            self._move(cell)
        index = self._cell % _CELLS
        self._events[index] += events
        self.events += events
        if weight:
            self._weights[index] += weight
            self.weight += weight

    def advance(self, now: float) -> None:
        """Forget what is older than the window."""
        cell = int(now * self._cells_per_second)
        if cell > self._cell:
            self._move(cell)

    def _move(self, cell: int) -> None:
        passed = min(cell - self._cell, _CELLS)
        for step in range(1, passed + 1):
            index = (self._cell + step) % _CELLS
            self.events -= self._events[index]
            self.weight -= self._weights[index]
            self._events[index] = self._weights[index] = 0
        # After a gap longer than the window every cell is clear, wherever the new one lies.
        self._cell = cell

    def clear(self) -> None:
        """Forget everything."""
        self._events[:] = self._weights[:] = [0] * _CELLS
        self.events = self.weight = 0
