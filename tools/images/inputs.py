"""Content hashes of the files that an image is made of.

Owns which bytes count. Reads the working tree, starts nothing; must not import the builders.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

TAG_HASH_CHARS = 12
_IGNORED_FOLDERS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build", "dist"})
_IGNORED_SUFFIXES = frozenset({".pyc", ".pyo"})


def iter_files(root: Path, entries: Iterable[str]) -> Iterator[Path]:
    """Yield the files below `entries` (paths relative to `root`), sorted, each once.

    A missing entry counts as empty: the hash changes when it appears. Byte code and caches never count.
    """
    found: set[Path] = set()
    for entry in entries:
        path = root / entry
        if path.is_file():
            found.add(path)
        elif path.is_dir():
            found.update(p for p in path.rglob("*") if p.is_file() and _counts(p.relative_to(root)))
    yield from sorted(found)


def content_hash(root: Path, entries: Iterable[str], facts: Iterable[str] = ()) -> str:
    """Return the first hex digits of a SHA-256 over names and bytes of the files and over `facts`.

    `facts` are inputs that are no files: the base image, build arguments. Their order counts.
    """
    digest = hashlib.sha256()
    for path in iter_files(root, entries):
        _feed(digest, path.relative_to(root).as_posix().encode())
        _feed(digest, path.read_bytes())
    for fact in facts:
        _feed(digest, b"fact")
        _feed(digest, fact.encode())
    return digest.hexdigest()[:TAG_HASH_CHARS]


def _feed(digest: "hashlib._Hash", part: bytes) -> None:
    # The length goes first, so that moving a byte from one part to the next changes the hash.
    digest.update(len(part).to_bytes(8, "big"))
    digest.update(part)


def _counts(relative: Path) -> bool:
    if relative.suffix in _IGNORED_SUFFIXES:
        return False
    return not any(part in _IGNORED_FOLDERS or part.endswith(".egg-info") for part in relative.parent.parts)
