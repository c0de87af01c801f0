"""The time engines take, measured at the port to them.

Owns a wrapper around any `UpstreamClient`; what it measures goes into the visit of the running request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from structuredllm_gateway.telemetry.visit import CURRENT, Visit
from structuredllm_gateway.upstream.client import UpstreamClient, UpstreamResponse


class _TimedResponse:
    """A response whose reads are timed; everything else is the inner one's."""

    def __init__(self, inner: UpstreamResponse, visit: Visit, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._visit = visit
        self._clock = clock
        self.status = inner.status
        self.headers = inner.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        visit, clock = self._visit, self._clock
        since: float | None = clock()
        try:
            async for chunk in self._inner.chunks():
                if since is not None:
                    visit.upstream_seconds += clock() - since
                # While the chunk is in other hands nobody waits for the engine.
                since = None
                yield chunk
                since = clock()
        finally:
            if since is not None:
                visit.upstream_seconds += clock() - since

    async def aclose(self) -> None:
        await self._inner.aclose()


class TimedUpstream:
    """An `UpstreamClient` that notes how long each engine was waited for."""

    def __init__(self, inner: UpstreamClient, clock: Callable[[], float]) -> None:
        """Wrap `inner`; `clock` is monotonic seconds."""
        self._inner = inner
        self._clock = clock

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        """See `UpstreamClient.post`."""
        visit = CURRENT.get()
        if visit is None:
            return await self._inner.post(url, body=body, headers=headers)
        since = self._clock()
        try:
            response = await self._inner.post(url, body=body, headers=headers)
        finally:
            visit.upstream_seconds += self._clock() - since
        return _TimedResponse(response, visit, self._clock)

    async def aclose(self) -> None:
        """See `UpstreamClient.aclose`."""
        await self._inner.aclose()
