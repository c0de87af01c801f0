"""The client of the hot path: HTTP/1.1 to engines over pooled connections, on asyncio and httptools.

Owns the requests as bytes and the one case in which a request is sent twice. No redirects, cookies, proxies
of the environment or decoding: bytes go out and come in as they are. When a connection that was used before
turns out to be closed, the request is sent again on another one only if the engine's side had closed before
anything of it arrived there (`http1_connection.UntouchedError`); in every other case nobody can know whether
the engine has begun, and the relay decides by its matrix.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from structuredllm_gateway.errors import UpstreamConnectError
from structuredllm_gateway.settings import UpstreamSettings
from structuredllm_gateway.upstream.http1_connection import UntouchedError
from structuredllm_gateway.upstream.http1_pool import ConnectionPool, Origin, PoolLimits
from structuredllm_gateway.upstream.http1_response import Http1Response

_MAX_TARGETS = 4096
_MAX_STALE = 3
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class _Target:
    """A URL, taken apart: where to connect to, and the first lines of a request."""

    origin: Origin
    head: str


class Http1Client:
    """An `UpstreamClient`; made and used inside one running loop."""

    def __init__(self, limits: PoolLimits, *, tls: ssl.SSLContext | None = None) -> None:
        """Prepare; connections open on demand. `tls` is for https URLs; default: the system's authorities."""
        self._pool = ConnectionPool(limits)
        self._tls = tls
        self._targets: dict[str, _Target] = {}

    @classmethod
    def of(cls, settings: UpstreamSettings) -> Http1Client:
        """Make one with the bounds of `settings`."""
        return cls(
            PoolLimits(
                max_connections=settings.max_connections,
                max_per_origin=settings.max_connections_per_endpoint,
                max_waiters=settings.max_connection_waiters,
                wait_seconds=settings.connect_timeout_seconds,
                keepalive_seconds=settings.keepalive_seconds,
                connect_seconds=settings.connect_timeout_seconds,
                silence_seconds=settings.try_timeout_seconds,
                max_head_bytes=settings.max_head_bytes,
            )
        )

    @property
    def pool(self) -> ConnectionPool:
        """The connections, to look at."""
        return self._pool

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> Http1Response:
        """See `UpstreamClient.post`."""
        target = self._targets.get(url)
        if target is None:
            target = self._target(url)
        head = _head(target.head, headers, len(body))
        pool, stale = self._pool, 0
        while True:
            connection = pool.take(target.origin)
            if connection is None:
                connection = await pool.make(target.origin)
            reused = connection.answered > 0
            future = connection.send(head, body)
            try:
                return await future
            except UntouchedError:
                stale += 1
                if not reused or stale > _MAX_STALE:
                    raise
            except asyncio.CancelledError:
                if future.cancelled() or not future.done():
                    connection.abort()
                elif future.exception() is None:
                    # The head had come: the connection may be whole, free and somebody else's by now.
                    await future.result().aclose()
                raise

    async def aclose(self) -> None:
        """See `UpstreamClient.aclose`."""
        self._pool.close()

    def _target(self, url: str) -> _Target:
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS[parts.scheme]
            host = parts.hostname or ""
            if not host or not url.isascii() or not url.isprintable() or " " in url:
                raise ValueError("no host, or characters that must be escaped")
        except (ValueError, KeyError) as error:
            raise UpstreamConnectError(f"The engine's URL {url[:256]!r} cannot be used: {error}.") from error
        tls = None
        if parts.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            tls = self._tls
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        authority = parts.netloc.rpartition("@")[2]
        target = _Target(
            Origin(host, port, tls),
            # identity: the bytes are looked at; compressing them between two pods gains nothing.
            f"POST {path} HTTP/1.1\r\nhost: {authority}\r\naccept-encoding: identity\r\n",
        )
        if len(self._targets) >= _MAX_TARGETS:
            self._targets.clear()
        self._targets[url] = target
        return target


def _head(start: str, headers: Mapping[str, str], length: int) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    lines = len(headers)
    if fields.count("\n") != lines or fields.count("\r") != lines or "\0" in fields:
        raise ValueError("a header field has a line end in it")
    return f"{start}{fields}content-length: {length}\r\n\r\n".encode("latin-1")
