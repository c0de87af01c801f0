"""What one client connection may take: times, sizes, and how many there may be.

Owns the values and the bookkeeping that all connections of a process share; must not import uvicorn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from structuredllm_gateway.telemetry.connections import ConnectionCounts

_LOOKS_PER_LIMIT = 4
_MAX_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Bounds:
    """The limits of a connection; seconds and bytes. Without `max_body_bytes` only headers are measured."""

    header_seconds: float = 5.0
    body_seconds: float = 10.0
    write_seconds: float = 30.0
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    write_buffer_bytes: int = 64 * 1024
    max_connections: int = 4096
    linger_seconds: float = 1.0


class Bounded(Protocol):
    """A connection as its keeper sees it."""

    def look(self, now: float) -> None:
        """End the connection if one of its deadlines has passed."""
        ...

    def evict(self) -> None:
        """End the connection to make room; called only while it waits for a request."""
        ...


@dataclass
class Connections:
    """All client connections of a process, and the one timer that looks at their deadlines.

    One timer for all, because one for each would be set and cleared several times in every request.

    Attributes:
        bounds: the limits.
        counts: what the metrics read.
        draining: the process is on its way out: each answer ends its connection.
        waiting: connections without a request, oldest first.
    """

    bounds: Bounds
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)
    draining: bool = False
    waiting: dict[Bounded, None] = field(default_factory=dict)
    _all: set[Bounded] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None

    def opened(self, connection: Bounded, loop: asyncio.AbstractEventLoop) -> bool:
        """Take a new connection; False when there is no room for it and none could be made."""
        if len(self._all) >= self.bounds.max_connections:
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                return False
            oldest.evict()
            self.closed(oldest)
        self._all.add(connection)
        self.waiting[connection] = None
        self.counts.open = len(self._all)
        if self._timer is None:
            self._arm(loop)
        return True

    def closed(self, connection: Bounded) -> None:
        """Forget a connection; more than once does no harm."""
        self._all.discard(connection)
        self.waiting.pop(connection, None)
        self.counts.open = len(self._all)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        bounds = self.bounds
        shortest = min(
            bounds.header_seconds, bounds.body_seconds, bounds.write_seconds, bounds.linger_seconds
        )
        pause = min(_MAX_PAUSE_SECONDS, shortest / _LOOKS_PER_LIMIT)
        self._timer = loop.call_later(pause, self._look, loop, loop.time)

    def _look(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._timer = None
        now = clock()
        for connection in tuple(self._all):
            connection.look(now)
        if self._all:
            self._arm(loop)
