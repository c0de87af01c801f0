"""The folder of finished image archives: names, digest, age limit, lock.

Owns `${cache}/images/*.tar`. Knows nothing of how an archive is made.
"""

import fcntl
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.images.errors import ImageError

KEEP_PER_IMAGE = 2
_MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024


def archive_path(folder: Path, reference: str) -> Path:
    """Return where the archive of `localhost/structuredllm/NAME:TAG` is kept: `folder/NAME-TAG.tar`."""
    name, _, tag = reference.rpartition("/")[2].partition(":")
    if not name or not tag:
        raise ImageError(f"image reference {reference!r} has no name or no tag: expected REGISTRY/NAME:TAG")
    return folder / f"{name}-{tag}.tar"


def select_stale(paths_newest_first: Sequence[Path], keep: int = KEEP_PER_IMAGE) -> list[Path]:
    """Return the archives beyond the `keep` newest of one image."""
    return list(paths_newest_first[keep:])


def prune(folder: Path, name: str, keep: int = KEEP_PER_IMAGE) -> list[Path]:
    """Delete all but the `keep` most recently used archives of one image; return what was deleted.

    The dash before `dev` keeps `engine-cpu` apart from `engine-cpu-base`.
    """
    found = sorted(folder.glob(f"{name}-dev-*.tar"), key=lambda p: p.stat().st_mtime, reverse=True)
    stale = select_stale(found, keep)
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def mark_used(archive: Path) -> None:
    """Make the archive the newest of its image, so that the one in use is never the one pruned."""
    os.utime(archive)


def archive_digest(archive: Path) -> str:
    """Return `sha256:...` of the image in an OCI archive (its manifest) or Docker archive (its config).

    Raises:
        ImageError: the file is no image archive, or is cut short.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            names = tar.getnames()
            if "index.json" in names:
                return str(_read_json(tar, "index.json")["manifests"][0]["digest"])
            config = str(_read_json(tar, "manifest.json")[0]["Config"])
            return "sha256:" + config.removesuffix(".json").rpartition("/")[2]
    except (OSError, tarfile.TarError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ImageError(
            f"{archive} is not a readable image archive ({error}); delete it and build again"
        ) from error


def _read_json(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    if member is None:
        raise KeyError(name)
    parsed: Any = json.loads(member.read(_MANIFEST_LIMIT_BYTES))
    return parsed


@contextmanager
def build_lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the one lock of all builds in this cache; say so when another build has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of images is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def stale_references(listing: Iterable[str], folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of the builder's images that are ours and have no archive (any more).

    `listing` holds `NAME:TAG` as the builder names them, newest first. Base images have no archive: of each
    the newest is kept, because the next build stands on it.
    """
    product = set(names)
    bases_seen: set[str] = set()
    stale = []
    for reference in listing:
        path, _, tag = reference.rpartition(":")
        name = path.rpartition("/")[2]
        if not path.startswith("localhost/structuredllm/") or not tag.startswith("dev-"):
            continue
        if name in product:
            if not archive_path(folder, reference).is_file():
                stale.append(reference)
        elif name in bases_seen:
            stale.append(reference)
        else:
            bases_seen.add(name)
    return stale
