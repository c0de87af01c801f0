"""How an engine is asked: a small port, and its implementation on the httpx API over aiohttp's connections.

Owns the connection pool and the translation of its exceptions. httpx gives the API, aiohttp the pool:
httpx's own costs more with every request in flight. Limits and timeouts are explicit; the proxies of the
environment are not used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from structuredllm_gateway.errors import UpstreamConnectError, UpstreamTimeoutError


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
        """Yield the body as it arrives.

        Raises:
            UpstreamConnectError: the connection broke.
            UpstreamTimeoutError: nothing arrived for too long.
        """
        ...

    async def aclose(self) -> None:
        """Release the connection; with the body not read to its end, close it: the engine then stops."""
        ...


class UpstreamClient(Protocol):
    """Asks engines."""

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        """Send one request and return when the answer's head has arrived.

        Raises:
            UpstreamConnectError: no connection, or it broke before the head.
            UpstreamTimeoutError: no head in time.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class _HttpxResponse:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError) as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._response.aclose()


class HttpxUpstreamClient:
    """An `UpstreamClient` with one pool for the process; made inside the running loop."""

    def __init__(
        self,
        *,
        max_connections: int,
        keepalive_seconds: float,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
        pool_timeout_seconds: float,
    ) -> None:
        """Prepare; connections open on demand. Nothing is ever redirected, decoded or kept as a cookie."""

        def session() -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(
                limit=max_connections, limit_per_host=0, keepalive_timeout=keepalive_seconds
            )
            return aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=2**18
            )

        self._client = httpx.AsyncClient(
            # verify: the transport would load a certificate store that the session does not use.
            transport=AiohttpTransport(client=session, verify=False),
            timeout=httpx.Timeout(
                connect=connect_timeout_seconds,
                read=read_timeout_seconds,
                write=read_timeout_seconds,
                pool=pool_timeout_seconds,
            ),
            follow_redirects=False,
            trust_env=False,
        )

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        """See `UpstreamClient.post`."""
        # identity: the bytes are looked at and passed on, compressing them between two pods gains nothing.
        sent = {**headers, "accept-encoding": "identity"}
        try:
            request = self._client.build_request("POST", url, content=body, headers=sent)
            return _HttpxResponse(await self._client.send(request, stream=True))
        except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """See `UpstreamClient.aclose`."""
        await self._client.aclose()


def _translated(error: Exception) -> UpstreamConnectError | UpstreamTimeoutError:
    # The transport calls every broken connection a ConnectTimeout; only a read that waited is a timeout.
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return UpstreamTimeoutError("The engine did not answer in time.")
    return UpstreamConnectError("The connection to the engine failed before its answer was complete.")
