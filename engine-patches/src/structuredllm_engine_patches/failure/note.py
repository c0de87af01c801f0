"""The note in which an engine's processes leave why they end, for the one that ends last.

A file, because the processes that know the cause are dying and share no channel with the front-end: the
workers write, the front-end reads. Its name is in the environment, which child processes inherit. It comes
into being with the first cause, so an engine that ends well leaves nothing behind.
"""

import os
import tempfile
import uuid
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from structuredllm_engine_patches.failure.cause import Cause, decode, encode, root_cause

VARIABLE = "STRUCTUREDLLM_FAILURE_NOTE"
MAX_BYTES = 64 * 1024
"""Read at most so much: a bound on what a crowd of failing ranks can leave."""


class FailureNote:
    """The note of one engine.

    Attributes:
        path: where it is, or will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, cause: Cause) -> None:
        """Add a cause; whoever cannot (disk full, folder gone) leaves without a note, never louder."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            handle = os.open(self.path, flags, 0o600)
            try:
                os.write(handle, f"{encode(cause)}\n".encode())
            finally:
                os.close(handle)

    def read(self) -> Cause | None:
        """Return the cause to show, or None when nobody left one."""
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES).decode(errors="replace")
        except OSError:
            return None
        return root_cause(decode(text))

    def remove(self) -> None:
        """Remove the file if there is one."""
        with suppress(OSError):
            self.path.unlink()


def open_note(environ: MutableMapping[str, str]) -> FailureNote:
    """Return the engine's note; the engine's first process chooses its name and leaves it in `environ`."""
    name = environ.get(VARIABLE)
    if not name:
        name = str(Path(tempfile.gettempdir()) / f"structuredllm-failure-{uuid.uuid4().hex}")
        environ[VARIABLE] = name
    return FailureNote(Path(name))
