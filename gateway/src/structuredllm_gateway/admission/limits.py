"""Bounds on what clients may occupy: requests in flight, and the body of each.

Owns the concurrency limit and the bounded body reader. The reader speaks ASGI; nothing here knows of engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from structuredllm_gateway.errors import BodyTimeoutError, BodyTooLargeError, OverloadedError

Receive = Callable[[], Awaitable[Any]]


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


class BodyReader:
    """Reads one request body from ASGI, bounded in bytes and time; then tells when the client goes away."""

    def __init__(
        self, receive: Receive, headers: Mapping[str, str], *, max_bytes: int, timeout_seconds: float
    ) -> None:
        """Prepare; nothing is read yet."""
        self._receive = receive
        self._declared = headers.get("content-length", "")
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._complete = asyncio.Event()

    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            BodyTooLargeError: the declared or the received length is above the limit.
            BodyTimeoutError: the body did not arrive in time.
            ClientClosedError: the client went away.
        """
        if self._declared.isdigit() and int(self._declared) > self._max_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientClosedError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_bytes:
                        raise self._too_large()
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            raise BodyTimeoutError(
                f"The request body did not arrive within {self._timeout_seconds:g} seconds."
            ) from error
        self._complete.set()
        return b"".join(parts)

    async def until_disconnect(self) -> None:
        """Return when the client has gone away; only looks once the body is complete."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is larger than {self._max_bytes} bytes, the limit here.")
