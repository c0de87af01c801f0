"""One case in the making: what is asked, how it is answered, and the table that corruptions are kept in.

Owns the vocabulary of cases. Must not import the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from tests.gateway_soak import wires
from tests.gateway_soak.carriers import Spoken
from tests.gateway_soak.schemas import Sample, TextSample, text_of
from tests.gateway_soak.ways import Way
from tests.gateway_soak.wires import Framing, Wire


class Kind(StrEnum):
    """What the gateway owes the client."""

    RIGHT = "right"  # the bytes of the engine with a 200
    FAULT = "fault"  # an answer that is not what was asked for: refused in enforce, named in observe
    NAMED = "named"  # an answer that was cut and says so: passes, named
    BROKEN = "broken"  # no answer at all: an error in every mode


@dataclass
class Draft:
    """What a corruption works on.

    Attributes:
        choices: the right answer, one text per choice.
        request: further fields of the request.
        spoilt: the texts as spoilt, when the corruption is one of texts; the independent judgement decides
            about them whether they still are answers.
    """

    rng: Random
    way: Way
    asked: Sample | TextSample
    streamed: bool
    choices: list[Spoken]
    framing: Framing = field(default_factory=Framing)
    request: dict[str, Any] = field(default_factory=dict)
    spoilt: list[str | None] | None = None

    @property
    def sample(self) -> Sample | None:
        """What is asked for, when it is JSON."""
        return self.asked if isinstance(self.asked, Sample) else None

    def wire(self, choices: Sequence[Spoken] | None = None) -> Wire:
        """Write an answer with these choices (default: the right ones) the way the client asked for."""
        said = self.choices if choices is None else choices
        if self.streamed:
            return self.events(self.chunks(said))
        return wires.json_of(self.way.carrier.whole(said))

    def chunks(self, choices: Sequence[Spoken] | None = None) -> list[dict[str, Any]]:
        """Return the chunks of a stream."""
        return self.way.carrier.chunks(self.choices if choices is None else choices, self.rng)

    def body(self) -> dict[str, Any]:
        """Return the body of the right answer, not streamed."""
        return self.way.carrier.whole(self.choices)

    def events(self, payloads: Sequence[Any], *, done: bool = True) -> Wire:
        """Write a stream of these payloads, cut somewhere."""
        data = wires.events(payloads, self.framing, self.rng, done=done and self.way.has_choices)
        return wires.streamed(wires.cut(data, self.rng))

    def end_of(self, data: bytes) -> int:
        """Return a place before the end of the event that ends the last choice of a stream."""
        return data.rindex(b"finish_reason" if self.way.has_choices else b"response.completed")

    def with_one(self, spoken: Spoken) -> Wire:
        """Write the answer with one of its choices replaced."""
        choices = list(self.choices)
        choices[self.rng.randrange(len(choices))] = spoken
        self.spoilt = [choice.text for choice in choices]
        return self.wire(choices)


def draft(rng: Random, way: Way, asked: Sample | TextSample) -> Draft:
    """Return the draft of a right answer."""
    count = rng.choice((1, 1, 1, 2, 3)) if way.has_choices else 1
    texts = [
        asked.value if isinstance(asked, TextSample) else text_of(rng, asked.value) for _ in range(count)
    ]
    choices = [Spoken(text) for text in texts]
    request: dict[str, Any] = {"n": count} if count > 1 else {}
    streamed = rng.random() < 0.5
    if streamed:
        request["stream"] = True
    return Draft(rng, way, asked, streamed, choices, request=request)


Make = Callable[[Draft], Wire | None]


@dataclass(frozen=True)
class Corruption:
    """One way in which answers go wrong (or look as if).

    Attributes:
        name: in the report.
        kind: what the gateway owes the client.
        outcomes: the classes that are right for it.
        make: writes the wire; None = cannot be done to this draft.
        streamed: whether it is one of streams (True), of whole answers (False) or of both (None).
        seen_as: threads of public trackers in which it was met.
    """

    name: str
    kind: Kind
    outcomes: frozenset[str]
    make: Make
    streamed: bool | None = None
    seen_as: tuple[str, ...] = ()


class Table:
    """Corruptions by name, in the order in which they were entered."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, Corruption] = {}

    def entry(
        self, kind: Kind, *outcomes: str, streamed: bool | None = None, seen_as: Sequence[str] = ()
    ) -> Callable[[Make], Make]:
        """Enter a function that writes a wire; its name is the corruption's."""

        def enter(make: Make) -> Make:
            name = make.__name__
            self.entries[name] = Corruption(name, kind, frozenset(outcomes), make, streamed, tuple(seen_as))
            return make

        return enter

    def text(
        self,
        *outcomes: str,
        finish: str = "stop",
        kind: Kind = Kind.FAULT,
        any_text: bool = False,
        seen_as: Sequence[str] = (),
    ) -> Callable[[Callable[[Random, str, Draft], str | None]], Callable[[Random, str, Draft], str | None]]:
        """Enter a function that spoils a text; None = cannot be done to this one.

        `any_text` = it can spoil a text that is no JSON, too.
        """

        def enter(
            spoil: Callable[[Random, str, Draft], str | None],
        ) -> Callable[[Random, str, Draft], str | None]:
            def make(given: Draft) -> Wire | None:
                if given.sample is None and not any_text:
                    return None
                text = given.choices[0].text or ""
                spoilt = spoil(given.rng, text, given)
                return None if spoilt is None or spoilt == text else given.with_one(Spoken(spoilt, finish))

            name = spoil.__name__
            self.entries[name] = Corruption(name, kind, frozenset(outcomes), make, None, tuple(seen_as))
            return spoil

        return enter
