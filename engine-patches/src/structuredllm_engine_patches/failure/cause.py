"""Why an engine ended: what each process saw, and which of these is the cause. Pure.

One failure makes many: after a stage is gone its neighbours fail with broken connections, sometimes before
anybody has noticed the first. The cause that is shown has to be the first domino.
"""

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_TEXT = 600
"""Characters of a cause: with its encoding below what one append to a file writes in one piece."""

LOST_PEER_WORDS = ("connection closed by peer", "connection reset", "connection refused", "broken pipe")
"""How errors of gloo and of sockets speak of a peer that is gone. Not NCCL: it waits instead of failing."""


class Kind(StrEnum):
    """What a process saw, in the order in which it is believed."""

    RAISED = "raised"
    """A call of this process raised an error of its own."""

    ENDED = "ended"
    """A process that should live is gone without a word (signal, exit)."""

    LOST = "lost"
    """A connection to another process broke: a consequence, unless nothing better is known."""


BELIEVED_FIRST = (Kind.RAISED, Kind.ENDED, Kind.LOST)


@dataclass(frozen=True)
class Cause:
    """What one process saw.

    Attributes:
        kind: see `Kind`.
        text: one line for a person: who failed, where, why; at most `MAX_TEXT` characters.
    """

    kind: Kind
    text: str


def rank_name(rank: int, *, world_size: int, stages: int) -> str:
    """Return what a rank is called: `rank 4 (pipeline stage 2)`; ranks of a stage are numbered in a row."""
    return f"rank {rank} (pipeline stage {rank * stages // world_size})"


def raised(who: str, error: BaseException) -> Cause:
    """Return the cause for an error that `who` (`rank 1 (stage 1), execute_model`) raised."""
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    kind = Kind.LOST if any(words in lowered for words in LOST_PEER_WORDS) else Kind.RAISED
    return Cause(kind, _one_line(f"{who}: {text}"))


def ended(who: str, exit_code: int) -> Cause:
    """Return the cause for a process that is gone; `exit_code` as Python's `Process.exitcode`."""
    if exit_code >= 0:
        return Cause(Kind.ENDED, _one_line(f"{who} ended with exit code {exit_code}"))
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (often the kernel, out of memory)" if name == "SIGKILL" else ""
    return Cause(Kind.ENDED, _one_line(f"{who} was ended by {name}{hint}"))


def root_cause(causes: Sequence[Cause]) -> Cause | None:
    """Return the one to show: the first of the most believed kind; None without any."""
    for kind in BELIEVED_FIRST:
        for cause in causes:
            if cause.kind is kind:
                return cause
    return None


def encode(cause: Cause) -> str:
    """Return the cause as one line of JSON without a line end."""
    return json.dumps({"kind": cause.kind.value, "text": cause.text[:MAX_TEXT]})


def decode(lines: str) -> list[Cause]:
    """Return the causes of a text made of `encode`d lines; a line that is none (half written) is left out."""
    found = []
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
            found.append(Cause(Kind(entry["kind"]), str(entry["text"])))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= MAX_TEXT else words[: MAX_TEXT - 3] + "..."
