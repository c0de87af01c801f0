"""One case of the soak: its request, what the engine answers, and what the client is owed.

Owns the drawing of cases: a seed and a number give the same case again. Must not import the gateway.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.gateway_soak import broken_wires, right_answers, spoilt_texts
from tests.gateway_soak.drafts import Corruption, Kind, draft
from tests.gateway_soak.schemas import Sample, TextSample
from tests.gateway_soak.ways import WAYS, Way
from tests.gateway_soak.wires import Wire

ENFORCED, WATCHED = "toy", "watched"
"""The models: one whose answers are enforced, one whose answers are observed."""

_RIGHT = tuple(right_answers.TABLE.entries.values())
_WRONG = (*spoilt_texts.TABLE.entries.values(), *broken_wires.TABLE.entries.values())
CORRUPTIONS: Mapping[str, Corruption] = {entry.name: entry for entry in (*_RIGHT, *_WRONG)}
# A schema is asked for by this many cases in a row, as by the requests of one program.
_PER_SCHEMA = 4
_ATTEMPTS = 20
_RIGHT_SHARE = 0.35
_WATCHED_SHARE = 0.1
_OF_JSON = frozenset({"not_json", "trailing_or_leading_text"})


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        kind: what the client is owed; a spoilt text that still is an answer is owed as a right one.
        outcomes: the classes that are right.
    """

    number: int
    way: Way
    asked: Sample | TextSample
    corruption: Corruption
    kind: Kind
    outcomes: frozenset[str]
    request: Mapping[str, Any]
    wire: Wire
    streamed: bool
    enforced: bool

    @property
    def title(self) -> str:
        """What a finding is reported under."""
        form = "stream" if self.streamed else "whole"
        mode = "enforce" if self.enforced else "observe"
        return f"case {self.number}: {self.corruption.name}, {self.way.name}, {self.way.path}, {form}, {mode}"


def case_of(seed: int, number: int, *, name: str | None = None) -> Case:
    """Return case `number` of `seed`; `name` = of this corruption only.

    The first cases are one of each corruption, so that no run leaves one out.
    """
    if name is None and number < len(CORRUPTIONS):
        name = list(CORRUPTIONS)[number]
    shared = Random(f"{seed}/{number // _PER_SCHEMA}")  # noqa: S311 - repeatable
    way = shared.choice(WAYS)
    asked = way.make(shared)
    rng = Random(f"{seed}/{number // _PER_SCHEMA}/{number}")  # noqa: S311 - repeatable
    for attempt in itertools.count(1):
        if attempt % _ATTEMPTS == 0:
            # Not every corruption can be done to every way to ask.
            way = shared.choice(WAYS)
            asked = way.make(shared)
        given = draft(rng, way, asked)
        chosen = CORRUPTIONS[name] if name else rng.choice(_RIGHT if rng.random() < _RIGHT_SHARE else _WRONG)
        if chosen.streamed not in (None, given.streamed):
            continue
        wire = chosen.make(given)
        if wire is None:
            continue
        kind, outcomes = chosen.kind, chosen.outcomes
        if kind is Kind.FAULT and spoilt_texts.still_an_answer(given) and "finish_abnormal" not in outcomes:
            kind, outcomes = Kind.RIGHT, frozenset({"ok"})
        elif kind is Kind.FAULT and isinstance(asked, TextSample):
            # A text that is no JSON by nature has one way to be another text.
            outcomes = outcomes - _OF_JSON | {"schema_violation"}
        enforced = rng.random() >= _WATCHED_SHARE
        model = ENFORCED if enforced else WATCHED
        request = {**way.request(asked, number), **given.request, "model": model}
        return Case(number, way, asked, chosen, kind, outcomes, request, wire, given.streamed, enforced)
    raise AssertionError("unreachable")
