"""A server of raw bytes: answers what a script says, byte by byte if need be, and sees what became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from structuredllm_gateway.upstream.http1 import Http1Client
from structuredllm_gateway.upstream.http1_pool import PoolLimits

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """What a raw server saw."""

    url: str = ""
    connections: int = 0
    open: int = 0
    requests: list[bytes] = field(default_factory=list)


async def read_request(reader: asyncio.StreamReader, seen: Seen) -> bytes:
    """Read one request with a Content-Length; raises IncompleteReadError when the client has gone."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    request = head + await reader.readexactly(length)
    seen.requests.append(request)
    return request


@asynccontextmanager
async def raw_server(
    answers: Sequence[bytes | Sequence[bytes]] | Handler, *, closes: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[Seen]:
    """Serve on a free port.

    `answers` are given one per request (the last one again and again); a sequence of parts is written part
    by part. `closes` = the connection is closed after each. A function gets the whole connection.
    """
    seen = Seen()
    given = 0
    handling: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal given
        task = cast("asyncio.Task[None]", asyncio.current_task())
        handling.add(task)
        task.add_done_callback(handling.discard)
        seen.connections += 1
        seen.open += 1
        try:
            if callable(answers):
                await answers(reader, writer)
                return
            while True:
                await read_request(reader, seen)
                answer = answers[min(given, len(answers) - 1)]
                given += 1
                for part in [answer] if isinstance(answer, bytes) else answer:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            seen.open -= 1
            with contextlib.suppress(ConnectionError):
                writer.close()

    server = await asyncio.start_server(handle, host, 0)
    port = server.sockets[0].getsockname()[1]
    seen.url = f"http://[{host}]:{port}/x" if ":" in host else f"http://{host}:{port}/x"
    try:
        yield seen
    finally:
        server.close()
        for task in list(handling):
            task.cancel()
        await asyncio.gather(*handling)


def client_with(**changed: float) -> Http1Client:
    """Return a client with short limits."""
    values: dict[str, float] = {
        "max_connections": 8,
        "max_per_origin": 8,
        "max_waiters": 8,
        "wait_seconds": 1.0,
        "keepalive_seconds": 5.0,
        "connect_seconds": 1.0,
        "silence_seconds": 1.0,
        "max_head_bytes": 4096,
        **changed,
    }
    return Http1Client(PoolLimits(**values))  # type: ignore[arg-type]


@asynccontextmanager
async def client(**changed: float) -> AsyncIterator[Http1Client]:
    """Return a client that is closed in the end."""
    made = client_with(**changed)
    try:
        yield made
    finally:
        await made.aclose()
