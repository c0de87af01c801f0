"""What the workers of a pod tell each other: a few names, each with the time until which it holds.

Owns the port, for a process that is alone and for several. It is what a quarantine needs to be agreed: the
worker that ejects a replica publishes it, the others read it when they pick. `CLOCK_MONOTONIC` is one clock
for all processes of a machine, so its times can be compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

_MAX_NAMES = 1024
_MAX_BYTES = 256 * 1024


class SharedState(Protocol):
    """A small board. Names are unique for what they mean, such as `quarantine/toy-engine-0`."""

    def publish(self, held: Mapping[str, float]) -> None:
        """Replace what this worker says: name to monotonic seconds until which it holds."""
        ...

    def held(self) -> Mapping[str, float]:
        """Return what all workers say now, the latest time of each name."""
        ...


class LocalState:
    """The board of a process that is alone."""

    def __init__(self) -> None:
        """Start empty."""
        self._held: dict[str, float] = {}

    def publish(self, held: Mapping[str, float]) -> None:
        """See `SharedState.publish`."""
        self._held = dict(held)

    def held(self) -> Mapping[str, float]:
        """See `SharedState.held`."""
        return self._held


class FolderState:
    """The board of one of several workers: a small file of each in a folder, replaced as a whole.

    Files, because a worker may die at any point: what it said stays, whole, and ends by its own time.
    """

    def __init__(
        self, folder: Path, number: int, clock: Callable[[], float], *, look_seconds: float = 0.2
    ) -> None:
        """Take the shared folder; others' files are looked at once in `look_seconds` at most."""
        self._folder = folder
        self._own = folder / f"state-{number}.json"
        self._clock = clock
        self._look_seconds = look_seconds
        self._looked: float | None = None
        self._held: dict[str, float] = {}

    def publish(self, held: Mapping[str, float]) -> None:
        """See `SharedState.publish`."""
        written = dict(list(held.items())[:_MAX_NAMES])
        scratch = self._own.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(written))
        scratch.replace(self._own)
        self._looked = None

    def held(self) -> Mapping[str, float]:
        """See `SharedState.held`; a file that cannot be read says nothing."""
        now = self._clock()
        if self._looked is None or now - self._looked >= self._look_seconds:
            self._looked = now
            self._held = self._read(now)
        return self._held

    def _read(self, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for path in self._folder.glob("state-*.json"):
            try:
                with path.open("rb") as file:
                    said = json.loads(file.read(_MAX_BYTES))
                items = [(str(name), float(until)) for name, until in said.items()]
            except (OSError, ValueError, AttributeError, TypeError):
                continue
            for name, until in items:
                if until > max(now, found.get(name, 0.0)):
                    found[name] = until
        return found
