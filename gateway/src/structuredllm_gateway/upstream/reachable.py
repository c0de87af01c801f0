"""Whether an engine can be reached at all: one fresh connection, one cheap request.

Owns that I/O. It tells an engine that is gone (refused, reset, closed without a byte) from one that is slow:
a busy engine must not be taken for a restarted one.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


async def is_reachable(base_url: str, *, connect_seconds: float = 3.0, answer_seconds: float = 5.0) -> bool:
    """Return whether `base_url` accepts a connection and does not close it unanswered.

    Args:
        base_url: http or https, without a path.
        connect_seconds: limit for the connection; longer counts as not reachable.
        answer_seconds: how long a first byte of GET /health is waited for; longer counts as reachable.
    """
    parts = urlsplit(base_url)
    secure = parts.scheme == "https"
    try:
        async with asyncio.timeout(connect_seconds):
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if secure else 80), ssl=True if secure else None
            )
    except (OSError, TimeoutError):
        return False
    try:
        request = f"GET /health HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        async with asyncio.timeout(answer_seconds):
            return bool(await reader.read(1))
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.close()
