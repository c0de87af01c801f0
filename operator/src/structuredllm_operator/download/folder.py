"""One model's folder on the claim: parts, checksums, the note that it is complete, and the lock.

Layout below the folder: the model's files as on the hub, and `.structuredllm/` with `parts/<digest>`
(unfinished files), `have/<name>` (the digest that a finished file had when it was checked) and
`complete.json`. It must not know the hub.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from structuredllm_operator.download.hub import RemoteFile, Revision

CHUNK: Final = 1 << 20
STATE: Final = ".structuredllm"


@dataclass(frozen=True)
class Complete:
    """What a complete folder holds. `size` in bytes over all files."""

    commit: str
    size: int


class Folder:
    """The folder of one repository at one revision."""

    def __init__(self, path: Path, *, repo: str, revision: str) -> None:
        self._path = path
        self._state = path / STATE
        self._repo = repo
        self._revision = revision

    def complete(self) -> Complete | None:
        """Return what is there when every file is, in its full size; else None."""
        try:
            note: dict[str, Any] = json.loads((self._state / "complete.json").read_text("utf-8"))
            if (note["repo"], note["revision"]) != (self._repo, self._revision):
                return None
            sizes: dict[str, int] = note["files"]
            if any((self._path / name).stat().st_size != size for name, size in sizes.items()):
                return None
            return Complete(str(note["commit"]), sum(sizes.values()))
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; waits for another download of the same model.

        A file system without locks does not stop the work: parts are named by content, and what is finished
        was checked.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        with (self._state / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                yield
                return
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def has(self, file: RemoteFile) -> bool:
        """Whether the file is there and its checksum was right when it was finished."""
        try:
            same_size = (self._path / file.path).stat().st_size == file.size
            return same_size and self._have(file).read_text("utf-8") == file.digest
        except (FileNotFoundError, NotADirectoryError):
            return False

    def part(self, file: RemoteFile) -> Path:
        """Return the path of the unfinished file, its folder made."""
        path = self._state / "parts" / file.digest
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, file: RemoteFile) -> bool:
        """Check size and checksum of the part and move it in place.

        Returns False, and removes the part, when they are wrong.
        """
        part = self.part(file)
        if part.stat().st_size != file.size or digest_of(part, file) != file.digest:
            part.unlink()
            return False
        target = self._path / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        have = self._have(file)
        have.parent.mkdir(parents=True, exist_ok=True)
        with part.open("rb") as body:
            os.fsync(body.fileno())
        # The old note goes first: a kill in between leaves a file that is fetched again, never a wrong one.
        have.unlink(missing_ok=True)
        os.replace(part, target)
        _write(have, file.digest)
        return True

    def missing_bytes(self, files: Iterable[RemoteFile]) -> int:
        """Return how many bytes are still to be fetched."""
        return sum(file.size - self.part_size(file) for file in files if not self.has(file))

    def part_size(self, file: RemoteFile) -> int:
        """Return the size of the unfinished file, 0 when there is none."""
        try:
            return min(file.size, self.part(file).stat().st_size)
        except FileNotFoundError:
            return 0

    def free_bytes(self) -> int:
        """Return the free space of the claim."""
        return shutil.disk_usage(self._path).free

    def seal(self, revision: Revision) -> Complete:
        """Note that all files are there, and remove what is unfinished."""
        shutil.rmtree(self._state / "parts", ignore_errors=True)
        sizes = {file.path: file.size for file in revision.files}
        note = {
            "repo": self._repo,
            "revision": self._revision,
            "commit": revision.commit,
            "files": sizes,
        }
        _write(self._state / "complete.json", json.dumps(note, sort_keys=True))
        return Complete(revision.commit, sum(sizes.values()))

    def _have(self, file: RemoteFile) -> Path:
        return self._state / "have" / quote(file.path, safe="")


def digest_of(path: Path, file: RemoteFile) -> str:
    """Return the checksum of a file's content, of the kind that the hub gave for it."""
    if len(file.digest) == 64:
        total = hashlib.sha256()
    else:
        # Git's name of a blob; the hub gives no other checksum of small files.
        total = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as body:
        while chunk := body.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as body:
        body.write(text)
        body.flush()
        os.fsync(body.fileno())
    os.replace(fresh, path)
