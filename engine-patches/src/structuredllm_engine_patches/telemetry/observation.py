"""Counters of one engine core, written by its loop and read by the scrape thread.

Pure. Plain numbers and not prometheus objects, so that the loop takes no lock for them.
"""

from dataclasses import dataclass, field
from enum import StrEnum

KNOWN_BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer")
OTHER_BACKEND = "other"


class State(StrEnum):
    """State of a patch in this process."""

    ACTIVE = "active"
    SKIPPED = "skipped"
    DISABLED = "disabled"


@dataclass(frozen=True)
class PatchState:
    """State of one patch, as in /info.

    Attributes:
        patch_id: id in the register.
        state: see `State`.
        reason: why it is not active; empty when it is.
    """

    patch_id: str
    state: State
    reason: str = ""


@dataclass
class Observation:
    """Counters since the start of the engine core.

    Attributes:
        stale_masks: masks built while an earlier token of their request was still in flight.
        grammar_rejects: sampled tokens that a grammar refused, which ended their request, by backend.
    """

    stale_masks: int = 0
    grammar_rejects: dict[str, int] = field(default_factory=dict)

    def expect_backend(self, backend: str) -> None:
        """Show the series of a backend from the start, so that a rate sees its first increment."""
        names = KNOWN_BACKENDS[:2] if backend == "auto" else (backend,)
        for name in names:
            self.grammar_rejects.setdefault(bounded_backend(name), 0)

    def count_reject(self, backend: str) -> None:
        """Count one request that ended because its grammar refused a sampled token."""
        name = bounded_backend(backend)
        self.grammar_rejects[name] = self.grammar_rejects.get(name, 0) + 1


def bounded_backend(backend: str) -> str:
    """Return the backend's name, or `other` for one that is not known: label values must be few."""
    return backend if backend in KNOWN_BACKENDS else OTHER_BACKEND
