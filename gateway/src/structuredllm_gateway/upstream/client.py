"""How an engine is asked: a small port, so that what decides knows no connections.

Owns the port only; must not import I/O. The implementation is in `upstream.http1`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol


class UpstreamResponse(Protocol):
    """An answer whose head has arrived; must be closed. Header names are lower-case."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, never an empty part; it ends only where the answer is complete.

        Raises:
            UpstreamConnectError: the connection broke, or the body is not what its head declared.
            UpstreamTimeoutError: nothing arrived for too long.
        """
        ...

    async def aclose(self) -> None:
        """Release the connection; with the body not read to its end, close it: the engine then stops."""
        ...


class UpstreamClient(Protocol):
    """Asks engines."""

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        """Send one request and return when the answer's head has arrived; cancelled, it closes at once.

        Raises:
            UpstreamConnectError: no connection, it broke before the head, or what came is not HTTP.
            UpstreamTimeoutError: no head in time.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
