"""Bounds on what clients may occupy: requests in flight.

Owns the concurrency limit; nothing here knows of engines.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

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

    def slot(self) -> Self:
        """Return what holds one slot as a context.

        Raises:
            OverloadedError: all slots are taken.
        """
        if self.in_flight >= self._limit:
            raise OverloadedError(
                f"The gateway has {self._limit} requests in flight, which is its limit; try again later.",
                retry_after_seconds=self._retry_after_seconds,
            )
        return self

    def __enter__(self) -> None:
        self.in_flight += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
