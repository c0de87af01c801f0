"""The connections to all engines: kept per origin, bounded per origin and in all, never used when stale.

Owns the counts, the idle connections and the queue of those who wait for one. Idle connections are used last
in, first out, so that those which are not needed grow old and are closed before the engine closes them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field

from structuredllm_gateway.errors import UpstreamConnectError
from structuredllm_gateway.upstream.http1_connection import Http1Connection


@dataclass(frozen=True)
class Origin:
    """Where connections lead to; `tls` None = plain."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class PoolLimits:
    """Bounds of a pool; times in seconds.

    Attributes:
        max_connections: open connections, all together.
        max_per_origin: open connections to one engine.
        max_waiters: requests that wait for a connection; the next one fails at once.
        wait_seconds: how long one waits.
        keepalive_seconds: how long an idle connection is kept; below the engine's own limit.
        connect_seconds: for name, connection and TLS together.
        silence_seconds: longest wait for the next byte of an answer.
        max_head_bytes: longest head of an answer.
    """

    max_connections: int
    max_per_origin: int
    max_waiters: int
    wait_seconds: float
    keepalive_seconds: float
    connect_seconds: float
    silence_seconds: float
    max_head_bytes: int


@dataclass
class _Place:
    """The connections of one origin; `open` counts those that are being made, too."""

    idle: deque[Http1Connection] = field(default_factory=deque)
    waiters: deque[_Waiter] = field(default_factory=deque)
    open: int = 0


@dataclass(eq=False)
class _Waiter:
    """A request without a connection; it is given one, or None: the right to open one."""

    number: int
    given: asyncio.Future[Http1Connection | None]


class ConnectionPool:
    """Gives out connections, one request at a time each; belongs to the loop that first uses it."""

    def __init__(self, limits: PoolLimits) -> None:
        """Start with no connection."""
        self._limits = limits
        self._places: dict[Origin, _Place] = {}
        self._origins: dict[Http1Connection, Origin] = {}
        self._open = 0
        self._waiting = 0
        self._numbers = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open(self) -> int:
        """Connections that are open or being made."""
        return self._open

    @property
    def waiting(self) -> int:
        """Requests that wait for a connection."""
        return self._waiting

    def take(self, origin: Origin) -> Http1Connection | None:
        """Return an idle connection, None when there is no good one."""
        place = self._places.get(origin)
        if place is None:
            return None
        idle = place.idle
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_seconds < self._limits.keepalive_seconds:
                return connection
            connection.abort()
        return None

    async def make(self, origin: Origin) -> Http1Connection:
        """Return a connection for which `take` had none: a new one, or after a wait one that became free.

        Raises:
            UpstreamConnectError: none could be opened, or none became free in time.
        """
        if self._closed:
            raise UpstreamConnectError("The gateway is shutting down.")
        place = self._places.setdefault(origin, _Place())
        limits = self._limits
        if place.open < limits.max_per_origin and self._open >= limits.max_connections:
            self._close_an_idle_one()
        if place.open < limits.max_per_origin and self._open < limits.max_connections:
            place.open += 1
            self._open += 1
        else:
            given = await self._wait(place)
            if given is not None:
                return given
        return await self._opened(origin, place)

    def give_back(self, connection: Http1Connection) -> None:
        """Take a connection whose answer is whole."""
        origin = self._origins.get(connection)
        if origin is None:
            return
        place = self._places[origin]
        while place.waiters:
            waiter = place.waiters.popleft()
            if not waiter.given.done():
                waiter.given.set_result(connection)
                return
        if self._closed or (self._waiting and self._open >= self._limits.max_connections):
            # Others wait for the right to open one: an idle connection is worth less.
            connection.abort()
            return
        place.idle.append(connection)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self._limits.keepalive_seconds, self._close_old)

    def close(self) -> None:
        """Close all connections; those who wait are told."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for place in list(self._places.values()):
            for waiter in list(place.waiters):
                if not waiter.given.done():
                    waiter.given.set_exception(UpstreamConnectError("The gateway is shutting down."))
            place.waiters.clear()
        for connection in list(self._origins):
            connection.abort()

    async def _opened(self, origin: Origin, place: _Place) -> Http1Connection:
        loop = asyncio.get_running_loop()
        limits = self._limits
        try:
            async with asyncio.timeout(limits.connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Http1Connection(
                        loop,
                        max_head_bytes=limits.max_head_bytes,
                        silence_seconds=limits.silence_seconds,
                        on_free=self.give_back,
                        on_closed=self._gone,
                    ),
                    origin.host,
                    origin.port,
                    ssl=origin.tls,
                    server_hostname=origin.host if origin.tls is not None else None,
                )
        except BaseException as error:
            self._released(origin, place)
            if isinstance(error, OSError | ValueError):
                # ValueError: a name that no resolver can be asked for.
                raise UpstreamConnectError("The engine cannot be reached.") from error
            raise
        if connection.closed:
            self._released(origin, place)
            raise UpstreamConnectError("The engine closed the connection at once.")
        self._origins[connection] = origin
        return connection

    async def _wait(self, place: _Place) -> Http1Connection | None:
        if self._waiting >= self._limits.max_waiters:
            raise UpstreamConnectError(
                f"All connections to the engine are taken and {self._waiting} requests wait for one."
            )
        self._numbers += 1
        waiter = _Waiter(self._numbers, asyncio.get_running_loop().create_future())
        place.waiters.append(waiter)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                return await waiter.given
        except BaseException as error:
            given = waiter.given
            if given.done() and not given.cancelled() and given.exception() is None:
                # Given in the moment in which the wait was given up: somebody else's now.
                connection = given.result()
                if connection is not None:
                    self.give_back(connection)
                else:
                    place.open -= 1
                    self._open -= 1
                    self._give_rights()
            if isinstance(error, TimeoutError):
                raise UpstreamConnectError("No connection to the engine became free in time.") from error
            raise
        finally:
            self._waiting -= 1
            if waiter in place.waiters:
                place.waiters.remove(waiter)

    def _gone(self, connection: Http1Connection) -> None:
        """A connection has closed."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        place = self._places[origin]
        if connection in place.idle:
            place.idle.remove(connection)
        self._released(origin, place)

    def _released(self, origin: Origin, place: _Place) -> None:
        place.open -= 1
        self._open -= 1
        if place.open == 0 and not place.waiters and self._places.get(origin) is place:
            # Engines come and go under ever new addresses.
            del self._places[origin]
        if self._waiting:
            self._give_rights()

    def _give_rights(self) -> None:
        """Let those open a connection who have waited longest, as far as the bounds allow."""
        while self._open < self._limits.max_connections and not self._closed:
            places = [
                place
                for place in self._places.values()
                if place.waiters and place.open < self._limits.max_per_origin
            ]
            if not places:
                return
            place = min(places, key=lambda item: item.waiters[0].number)
            waiter = place.waiters.popleft()
            if not waiter.given.done():
                place.open += 1
                self._open += 1
                waiter.given.set_result(None)

    def _close_an_idle_one(self) -> None:
        for place in self._places.values():
            if place.idle:
                place.idle.popleft().abort()
                return

    def _close_old(self) -> None:
        self._sweep = None
        for place in list(self._places.values()):
            while place.idle and place.idle[0].idle_seconds >= self._limits.keepalive_seconds:
                place.idle.popleft().abort()
        if any(place.idle for place in self._places.values()):
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self._limits.keepalive_seconds, self._close_old)
