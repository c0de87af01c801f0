"""Where answers have their text: the content of a message, a completion, the arguments of a call, a response.

Owns the shapes of right answers, as engines write them. Must not import the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

TOOL = "answer"
"""The name of the function that tool ways ask for."""
_USAGE = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}


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


def pieces_of(text: str, rng: Random) -> list[str]:
    """Cut a text into the pieces in which it is streamed."""
    size = rng.choice((1, 3, 8, 8, 64, 100_000))
    if len(text) > 400:
        size = max(size, 64)
    return [text[start : start + size] for start in range(0, len(text), size)]


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
class ChatText:
    """The content of a chat message."""

    def whole(self, choices: Sequence[Spoken]) -> dict[str, Any]:
        """See `Carrier.whole`."""
        items = [
            {"index": index, "message": self._message(one), "finish_reason": one.finish}
            for index, one in enumerate(choices)
        ]
        return _body("chat.completion", items) | {"usage": _USAGE}

    def chunks(self, choices: Sequence[Spoken], rng: Random) -> list[dict[str, Any]]:
        """See `Carrier.chunks`."""
        parts = []
        for index, one in enumerate(choices):
            deltas = self._deltas(one, rng)
            if rng.random() < 0.5:
                deltas.append({})  # engines end with an empty delta, or with the last piece
            made = [{"delta": delta} for delta in deltas]
            parts.append(_chunks("chat.completion.chunk", made, index, one.finish))
        return _mixed(parts, rng)

    def _message(self, one: Spoken) -> dict[str, Any]:
        return {"role": "assistant", "content": one.text, **one.extra}

    def _deltas(self, one: Spoken, rng: Random) -> list[dict[str, Any]]:
        first: dict[str, Any] = {"role": "assistant", "content": rng.choice(("", None)), **one.extra}
        return [first, *({"content": piece} for piece in pieces_of(one.text or "", rng))]


@dataclass(frozen=True)
class ToolCall(ChatText):
    """The arguments of one call in a chat message; a text that is None is no call at all."""

    def _message(self, one: Spoken) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **one.extra}
        if one.text is not None:
            function = {"name": TOOL, "arguments": one.text}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
        return message

    def _deltas(self, one: Spoken, rng: Random) -> list[dict[str, Any]]:
        role: dict[str, Any] = {"role": "assistant", "content": None, **one.extra}
        if one.text is None:
            return [role]
        pieces = pieces_of(one.text, rng)
        # The name comes alone or with the first piece, in the first chunk only (vllm#42696, llama.cpp#22722).
        start = pieces.pop(0) if pieces and rng.random() < 0.5 else ""
        call = {
            "index": 0,
            "id": "call-1",
            "type": "function",
            "function": {"name": TOOL, "arguments": start},
        }
        more = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
        return [role, {"tool_calls": [call]}, *more]


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
        parts = []
        for index, one in enumerate(choices):
            made = [{"text": piece} for piece in [*pieces_of(one.text or "", rng), ""]]
            parts.append(_chunks("text_completion", made, index, one.finish))
        return _mixed(parts, rng)


_STATES: Mapping[str | None, str] = {"stop": "completed", "length": "incomplete", "error": "failed"}


@dataclass(frozen=True)
class ResponseText:
    """The text of a message in a response; such an answer has one choice."""

    def whole(self, choices: Sequence[Spoken]) -> dict[str, Any]:
        """See `Carrier.whole`."""
        (one,) = choices
        part = {"type": "output_text", "text": one.text or "", "annotations": []}
        message = {"type": "message", "id": "m1", "role": "assistant", "content": [part]}
        output: list[dict[str, Any]] = [message]
        for thought in one.extra.values():
            output.insert(0, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": thought}]})
        status = _STATES.get(one.finish, "cancelled" if one.finish else "in_progress")
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": "soak",
            "object": "response",
            "status": status,
            "incomplete_details": details,
            "output": output,
        }

    def chunks(self, choices: Sequence[Spoken], rng: Random) -> list[dict[str, Any]]:
        """See `Carrier.chunks`."""
        (one,) = choices
        whole = self.whole(choices)
        begun = {**whole, "status": "in_progress", "output": []}
        place = {"output_index": len(one.extra), "content_index": 0, "item_id": "m1"}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
        thought = {"type": "response.reasoning_text.delta", "output_index": 0}
        events += [{**thought, "delta": text} for text in one.extra.values()]
        delta = {"type": "response.output_text.delta", **place}
        events += [{**delta, "delta": piece} for piece in pieces_of(one.text or "", rng)]
        events.append({"type": "response.output_text.done", **place, "text": one.text or ""})
        if one.finish is not None:
            status = whole["status"]
            kind = status if status in ("completed", "incomplete") else "failed"
            events.append({"type": f"response.{kind}", "response": whole})
        return events
