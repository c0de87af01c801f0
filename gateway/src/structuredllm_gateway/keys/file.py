"""The key file on disk, watched: a changed file takes effect by itself, a broken one never.

Owns the reading. The kubelet changes a mounted Secret by swapping a symlink, which no watch on the file
itself sees, so the content is compared; it is small and on tmpfs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from structuredllm_gateway.keys.table import MAX_FILE_BYTES, KeyFileError, KeyTable, read_table


class KeyFile:
    """The keys of one path.

    Attributes:
        table: the last good content; empty before there was one.
        errors: how often a new content could not be used.
        is_stale: whether the content now on disk cannot be used, so that `table` is an older one.
    """

    def __init__(
        self,
        path: Path,
        log: structlog.typing.FilteringBoundLogger,
        *,
        read: Callable[[Path], bytes] | None = None,
    ) -> None:
        """Read once; a file that is missing or broken leaves no keys, and is said in the log."""
        self._path = path
        self._log = log
        self._read = read or _read_bounded
        self._seen: bytes | str | None = None
        self.table = KeyTable()
        self.errors = 0
        self.is_stale = False
        self.check()

    def check(self) -> None:
        """Look at the file; take it when it is new and good."""
        content: bytes | str
        try:
            content = self._read(self._path)
        except OSError as error:
            content = f"cannot be read: {error.strerror or type(error).__name__}"
        if content == self._seen:
            return
        self._seen = content
        try:
            if isinstance(content, str):
                raise KeyFileError(f"the key file {content}")
            self.table = read_table(content)
        except KeyFileError as error:
            self.errors += 1
            self.is_stale = True
            self._log.error(
                "key_file_rejected", path=str(self._path), error=str(error), keys_in_use=len(self.table.names)
            )
            return
        self.is_stale = False
        self._log.info("key_file_loaded", path=str(self._path), keys=len(self.table.names))

    async def run(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Check after every `pause` until cancelled."""
        while True:
            await pause()
            self.check()


def every(seconds: float) -> Callable[[], Awaitable[None]]:
    """Return a pause of `seconds`."""
    return lambda: asyncio.sleep(seconds)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)
