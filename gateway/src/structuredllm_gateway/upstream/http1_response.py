"""The answer of an engine on its way in: what has arrived and is not read yet, and how it ended.

Owns the bounded buffer between a connection and who reads it. It outlives the connection's part in it: once
the last byte has arrived the connection serves the next request, however slowly this answer is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, Self

from structuredllm_gateway.errors import UpstreamError

HIGH_WATER_BYTES = 256 * 1024
"""Unread bytes above which the connection is not read; what the engine sends on waits in the kernel."""


class Source(Protocol):
    """The connection, as its answer sees it."""

    def pause(self) -> None:
        """Stop reading."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Http1Response:
    """An `UpstreamResponse`; the connection feeds it, one reader takes from it."""

    __slots__ = ("_complete", "_error", "_held", "_loop", "_parts", "_source", "_waiter", "headers", "status")

    def __init__(
        self, status: int, headers: Mapping[str, str], source: Source, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start with nothing arrived."""
        self.status = status
        self.headers = headers
        self._source: Source | None = source
        self._loop = loop
        self._parts: list[bytes] = []
        self._held = 0
        self._complete = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # For the connection.

    def take(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER_BYTES and self._source is not None:
            self._source.pause()
        self._wake()

    def finish(self, error: UpstreamError | None = None) -> None:
        """There will be no more; `error` says why that is not the end of the answer."""
        self._complete = error is None
        self._error = error
        self._source = None
        self._wake()

    # For the reader.

    def chunks(self) -> Self:
        """See `UpstreamResponse.chunks`; what has arrived together comes out as one."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        # No generator: a loop is told of each asynchronous one, which costs more than the chunk.
        while True:
            if self._parts:
                parts = self._parts
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                self._held = 0
                if self._source is not None:
                    self._source.resume()
                return data
            if self._complete:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter

    async def aclose(self) -> None:
        """See `UpstreamResponse.aclose`."""
        if self._source is not None:
            self._source.abort()
            self._source = None
        self._parts.clear()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
