"""The retry budget: retries are a share of the traffic, so that they cannot become the traffic.

Owns the count of one model; pure, the time comes in. The form is Finagle's: a share of the requests of the
last ten seconds, and a few a second besides so that a quiet model may retry too.
"""

from __future__ import annotations

from structuredllm_gateway.replicas.window import SlidingWindow

_WINDOW_SECONDS = 10.0


class RetryBudget:
    """Requests and retries of the last ten seconds."""

    __slots__ = ("_ratio", "_reserve", "_window")

    def __init__(self, ratio: float, min_per_second: float) -> None:
        """Take the share of requests that may be retried, and the retries a second that always may be."""
        self._ratio = ratio
        self._reserve = min_per_second * _WINDOW_SECONDS
        self._window = SlidingWindow(_WINDOW_SECONDS)

    def deposit(self, now: float) -> None:
        """Count a request (its first try)."""
        self._window.add(now)

    def withdraw(self, now: float) -> bool:
        """Take one retry; False when the budget is used up."""
        window = self._window
        window.advance(now)
        if window.weight + 1 > self._reserve + self._ratio * window.events:
            return False
        window.add(now, 0, 1)
        return True
