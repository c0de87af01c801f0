"""Which classes of an answer speak against the replica that gave it.

Owns the table (one line per outcome class); pure, must not import I/O. What a client caused never counts: a
schema that every engine refuses must not take every engine away.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Blame(Enum):
    """What one answer says about its replica. The value: what it speaks of, and how strongly."""

    NOTHING = ("", 0)  # neither for nor against: the client left, or it was never asked
    GOOD = ("answer", 0)  # the replica did its part
    WEAK = ("answer", 1)  # a complete answer that is wrong: the model may be at fault too
    STRONG = ("answer", 2)  # the engine's structured output broke: nothing else can
    SILENT = ("transport", 2)  # it does not answer, or answers that it has failed

    @property
    def weight(self) -> int:
        """How much it counts against the replica; two is a whole failure."""
        weight: int = self.value[1]
        return weight


WHOLE_FAILURE = 2

# By name, as the classes are the wire's contract. A class that is missing here counts neither way.
BLAME: Mapping[str, Blame] = {
    "ok": Blame.GOOD,
    "plain": Blame.GOOD,
    "truncated": Blame.GOOD,
    "whitespace_runaway": Blame.WEAK,
    "finish_abnormal": Blame.WEAK,
    "not_json": Blame.WEAK,
    "schema_violation": Blame.WEAK,
    "trailing_or_leading_text": Blame.WEAK,
    "empty": Blame.NOTHING,  # with or without reasoning: the chat template's or the parser's configuration
    "in_reasoning": Blame.NOTHING,
    "grammar_rejected": Blame.STRONG,
    "stream_error": Blame.SILENT,
    "stream_aborted": Blame.SILENT,
    "stream_empty": Blame.SILENT,
    "upstream_5xx": Blame.SILENT,
    "connect_error": Blame.SILENT,
    "timeout": Blame.SILENT,
    "upstream_4xx": Blame.NOTHING,
    "schema_rejected": Blame.NOTHING,
    "request_rejected": Blame.NOTHING,
    "no_endpoint": Blame.NOTHING,
    "overloaded": Blame.NOTHING,
    "client_closed": Blame.NOTHING,
}


def blame_of(outcome: str) -> Blame:
    """Return what an outcome class says about the replica."""
    return BLAME.get(outcome, Blame.NOTHING)
