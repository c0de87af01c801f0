"""Bounds on what clients may occupy: requests in flight.

Owns the concurrency limit; nothing here knows of engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from structuredllm_gateway.errors import OverloadedError


class ClientClosedError(Exception):
    """The client went away before its request was complete."""


class ConcurrencyLimit:
    """At most `limit` requests in flight; the next one is shed at once, never queued."""

    def __init__(self, limit: int, retry_after_seconds: int) -> None:
        """Start with none in flight."""
        self._limit = limit
        self._retry_after_seconds = retry_after_seconds
        self.in_flight = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one slot.

        Raises:
            OverloadedError: all slots are taken.
        """
        if self.in_flight >= self._limit:
            raise OverloadedError(
                f"The gateway has {self._limit} requests in flight, which is its limit; try again later.",
                retry_after_seconds=self._retry_after_seconds,
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
