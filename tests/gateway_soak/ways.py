"""The ways to ask for structure: what a request says, what is a right answer, and where answers carry it.

Owns one table, `WAYS`; a new way to ask is one entry. Must not import the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from tests.gateway_soak.schemas import Sample, sample

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Spoken:
    """One choice of an answer: its text, why it ended, and further members of its message."""

    text: str | None
    finish: str | None = "stop"
    extra: Mapping[str, Any] = field(default_factory=dict)


class Carrier(Protocol):
    """Where an answer has its text."""

    def whole(self, choices: Sequence[Spoken]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ...

    def chunks(self, choices: Sequence[Spoken], rng: Random) -> list[dict[str, Any]]:
        """Return the chunks of a stream, the choices mixed."""
        ...


def _mixed(parts: Sequence[Sequence[dict[str, Any]]], rng: Random) -> list[dict[str, Any]]:
    """Mix the chunks of several choices, each in its own order."""
    left = [list(part) for part in parts if part]
    mixed = []
    while left:
        part = rng.choice(left)
        mixed.append(part.pop(0))
        if not part:
            left.remove(part)
    return mixed


def pieces_of(text: str, rng: Random) -> list[str]:
    """Cut a text into the pieces in which it is streamed."""
    size = rng.choice((1, 3, 8, 8, 64, 100_000))
    if len(text) > 400:
        size = max(size, 64)
    return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass(frozen=True)
class ChatText:
    """The content of a chat message."""

    def whole(self, choices: Sequence[Spoken]) -> dict[str, Any]:
        """See `Carrier.whole`."""
        items = [
            {
                "index": index,
                "message": {"role": "assistant", "content": one.text, **one.extra},
                "finish_reason": one.finish,
            }
            for index, one in enumerate(choices)
        ]
        return _body("chat.completion", items) | {"usage": _USAGE}

    def chunks(self, choices: Sequence[Spoken], rng: Random) -> list[dict[str, Any]]:
        """See `Carrier.chunks`."""
        return _mixed([self._one(index, one, rng) for index, one in enumerate(choices)], rng)

    def _one(self, index: int, one: Spoken, rng: Random) -> list[dict[str, Any]]:
        first: dict[str, Any] = {"role": "assistant", "content": rng.choice(("", None)), **one.extra}
        deltas = [first, *({"content": piece} for piece in pieces_of(one.text or "", rng))]
        if rng.random() < 0.5:
            deltas.append({})  # engines end with an empty delta, or with the last piece
        return _chunks("chat.completion.chunk", [{"delta": delta} for delta in deltas], index, one.finish)


@dataclass(frozen=True)
class CompletionText:
    """The text of a completion."""

    def whole(self, choices: Sequence[Spoken]) -> dict[str, Any]:
        """See `Carrier.whole`."""
        items = [
            {"index": index, "text": one.text, "finish_reason": one.finish}
            for index, one in enumerate(choices)
        ]
        return _body("text_completion", items) | {"usage": _USAGE}

    def chunks(self, choices: Sequence[Spoken], rng: Random) -> list[dict[str, Any]]:
        """See `Carrier.chunks`."""
        parts = [
            _chunks(
                "text_completion",
                [{"text": piece} for piece in [*pieces_of(one.text or "", rng), ""]],
                index,
                one.finish,
            )
            for index, one in enumerate(choices)
        ]
        return _mixed(parts, rng)


_USAGE = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}


def _body(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "soak", "object": kind, "created": 0, "model": "toy", "choices": choices}


def _chunks(
    kind: str, parts: Sequence[Mapping[str, Any]], index: int, finish: str | None
) -> list[dict[str, Any]]:
    last = len(parts) - 1
    return [
        _body(kind, [{"index": index, **part, "finish_reason": finish if place == last else None}])
        for place, part in enumerate(parts)
    ]


@dataclass(frozen=True)
class Way:
    """One way to ask.

    Attributes:
        name: in the report.
        path: of the route.
        carrier: where its answers have their text.
        ask: the fields that ask for a schema.
        make: what to ask for; by default any schema.
    """

    name: str
    path: str
    carrier: Carrier
    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    make: Callable[[Random], Sample] = sample

    def request(self, asked: Sample, case: int) -> dict[str, Any]:
        """Return the body of a request that the scripted engine knows as `case`."""
        prompt = f"case-{case}-"
        said: dict[str, Any] = (
            {"prompt": prompt}
            if self.path == COMPLETIONS
            else {"messages": [{"role": "user", "content": prompt}]}
        )
        return {"model": "toy", **said, **self.ask(asked.schema)}


def _any_object(rng: Random) -> Sample:
    return Sample({"type": "object"}, sample(rng).value)


def _format(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    wrapper = {"name": "x", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wrapper}}


WAYS: tuple[Way, ...] = (
    Way("response_format", CHAT, ChatText(), _format),
    Way("response_format", COMPLETIONS, CompletionText(), _format),
    Way("structured_outputs", CHAT, ChatText(), lambda schema: {"structured_outputs": {"json": schema}}),
    Way(
        "structured_outputs text",
        COMPLETIONS,
        CompletionText(),
        lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    ),
    Way("guided_json", CHAT, ChatText(), lambda schema: {"guided_json": schema}),
    Way(
        "json_object",
        CHAT,
        ChatText(),
        lambda _schema: {"response_format": {"type": "json_object"}},
        _any_object,
    ),
)
