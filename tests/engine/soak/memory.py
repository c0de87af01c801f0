"""Resident memory of an engine's processes over a soak, and whether it grew."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """Resident MiB of each process, by name, after so many structured requests."""

    done: int
    resident: Mapping[str, float]

    @property
    def total(self) -> float:
        """MiB of all processes."""
        return sum(self.resident.values())


def resident_of(session: int) -> dict[str, float]:
    """Return the resident MiB of every process of a session, by a name that is unique in it."""
    found: dict[str, float] = {}
    for name, pid in sorted(processes_of(session)):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        unique = name if name not in found else f"{name} {pid}"
        found[unique] = pages * PAGE / MIB
    return found


def processes_of(session: int) -> Iterator[tuple[str, int]]:
    """Yield name and process id of every process of a session."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The second field is the name in brackets and may contain spaces; the rest is not.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            yield os.path.basename(command) or "?", int(folder.name)


@dataclass(frozen=True)
class Growth:
    """A straight line through the samples after the warm-up.

    Attributes:
        start: MiB on the line at its begin.
        end: MiB on the line at its end.
        per_thousand: MiB that 1,000 structured requests add.
    """

    start: float
    end: float
    per_thousand: float


def growth_of(points: Sequence[tuple[int, float]]) -> Growth:
    """Fit (structured requests done, MiB) by least squares.

    Raises:
        ValueError: fewer than two different points.
    """
    if len({done for done, _ in points}) < 2:
        raise ValueError("a line needs two points")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    return Growth(mean_y + slope * (first - mean_x), mean_y + slope * (last - mean_x), slope * 1000)


def after_warm_up(samples: Sequence[Sample], warm_up: int) -> dict[str, Growth]:
    """Return the growth of every process that lived throughout, and of their sum as "total"."""
    counted = [sample for sample in samples if sample.done >= warm_up]
    if not counted:
        raise ValueError(f"no sample after a warm-up of {warm_up}")
    names = set.intersection(*(set(sample.resident) for sample in counted))
    lines = {
        name: growth_of([(sample.done, sample.resident[name]) for sample in counted])
        for name in sorted(names)
    }
    lines["total"] = growth_of([(sample.done, sample.total) for sample in counted])
    return lines
