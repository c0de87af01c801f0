"""A fake engine that sends scripted bytes: HTTP by hand, so that every lie of a server can be told.

Owns the socket. The case is named in the request's body (`case-17-`); a case that is asked again gets the
same wire again. Must not import the gateway.
"""

from __future__ import annotations

import asyncio
import re
from types import TracebackType
from typing import Self

from tests.gateway_soak.wires import Ending, Script

_CASE = re.compile(rb"case-(\d+)-")
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_MAX_HEAD = 64 * 1024


class ScriptedEngine:
    """Listens on a free port of 127.0.0.1 while the context is open."""

    def __init__(self, script: Script) -> None:
        """Take the script; it may grow while the engine runs."""
        self._script = script
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_MAX_HEAD)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answered(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the gateway has left, which is its right
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection may carry another."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        named = _CASE.search(body)
        if named is None:
            raise ConnectionError(f"a request that is no case: {body[:200]!r}")
        case = int(named[1])
        self._script.asked[case] = self._script.asked.get(case, 0) + 1
        wire = self._script.wires[case]
        for piece in wire.pieces:
            writer.write(piece)
            await writer.drain()
        match wire.ending:
            case Ending.HANG:
                await reader.read(1)
                return False
            case Ending.ABORT:
                writer.transport.abort()
                return False
            case Ending.CLOSE:
                return False
        return True
