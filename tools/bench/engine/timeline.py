"""The stages' records: when each worked, and what share of the time that is. Pure but for reading files."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECORD = struct.Struct("<ddI")
"""As the test plug-in's `stages` writes it."""


@dataclass(frozen=True)
class Pass:
    """One forward pass of one stage: begin and end in seconds of the machine's monotonic clock."""

    begin: float
    end: float
    tokens: int


Stages = Sequence[Sequence[Pass]]
"""Passes in order, for each stage from the first."""


def read_stages(folder: Path, count: int) -> Stages:
    """Return the passes of `count` stages; a stage that has not worked has none."""
    found = []
    for number in range(count):
        path = folder / f"stage-{number}.bin"
        data = path.read_bytes() if path.exists() else b""
        whole = len(data) - len(data) % RECORD.size
        found.append([Pass(*fields) for fields in RECORD.iter_unpack(data[:whole])])
    return found


def between(stages: Stages, begin: float, end: float) -> Stages:
    """Return the passes that lie in a span, cut at its ends."""
    return [
        [
            Pass(max(p.begin, begin), min(p.end, end), p.tokens)
            for p in passes
            if p.end > begin and p.begin < end
        ]
        for passes in stages
    ]


def busy_shares(stages: Stages) -> list[float]:
    """Return for each stage which share of the time it worked.

    The time is that from the first pass of the first stage to the last pass of the last one.
    """
    spans = [(passes[0].begin, passes[-1].end) for passes in stages if passes]
    if not spans:
        return [0.0 for _ in stages]
    begin, end = min(span[0] for span in spans), max(span[1] for span in spans)
    return [sum(p.end - p.begin for p in passes) / (end - begin) for passes in stages]
