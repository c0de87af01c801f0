"""What the engines answer: choices of a whole completion, and of a stream put together chunk by chunk.

Owns the reading of completion bodies and chunks (chat and text completions; OpenAI's API reference, vLLM's
`entrypoints/openai` protocol). Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

# Where reasoning models put their thinking; part of the stream but not of the answer.
_REASONING_FIELDS = ("reasoning", "reasoning_content")


class MalformedAnswerError(ValueError):
    """A body or chunk that is not a completion."""


@dataclass(frozen=True)
class Choice:
    """One choice: its text (None or "" = none), why it ended (None = it did not), whether it calls tools.

    `oversized` marks a streamed text that outgrew the limit and was not kept.
    """

    index: int
    text: str | None
    finish_reason: str | None
    has_tool_calls: bool = False
    oversized: bool = False


def choices_of(body: bytes) -> tuple[Choice, ...]:
    """Return the choices of a whole chat or text completion.

    Raises:
        MalformedAnswerError: the body is not a completion.
    """
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedAnswerError(f"the engine's answer is not JSON: {error}") from error
    items = whole.get("choices") if isinstance(whole, dict) else None
    if not isinstance(items, list):
        raise MalformedAnswerError("the engine's answer has no choices")
    return tuple(_choice(position, item) for position, item in enumerate(items))


def _choice(position: int, item: Any) -> Choice:
    if not isinstance(item, dict):
        raise MalformedAnswerError(f"choice {position} of the engine's answer is not an object")
    message = item.get("message")
    holder: Mapping[str, Any] = message if isinstance(message, dict) else {}
    text = holder.get("content") if holder else item.get("text")
    if text is not None and not isinstance(text, str):
        raise MalformedAnswerError(f"choice {position} of the engine's answer has content that is not text")
    index = item.get("index")
    return Choice(
        index if isinstance(index, int) else position,
        text,
        item.get("finish_reason"),
        bool(holder.get("tool_calls")),
    )


@dataclass
class _Growing:
    parts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    has_tool_calls: bool = False


class StreamAssembler:
    """Puts a stream's chunks together; keeps at most `max_chars` characters of `max_choices` choices."""

    def __init__(self, max_chars: int, max_choices: int = 128) -> None:
        """Start empty."""
        self._max_chars = max_chars
        self._max_choices = max_choices
        self._chars = 0
        self._choices: dict[int, _Growing] = {}

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """Take one chunk; return whether it carries part of an answer (text, reasoning, a tool call).

        Raises:
            MalformedAnswerError: not a chunk of a completion, or more choices than allowed.
        """
        items = chunk.get("choices", [])
        if not isinstance(items, list):
            raise MalformedAnswerError("a chunk of the engine's stream has choices that are not a list")
        parts = [self._feed_choice(item) for item in items]
        return any(parts)

    def _feed_choice(self, item: Any) -> bool:
        if not isinstance(item, dict):
            raise MalformedAnswerError("a choice in the engine's stream is not an object")
        index = item.get("index", 0)
        growing = self._choices.get(index)
        if growing is None:
            if len(self._choices) >= self._max_choices:
                raise MalformedAnswerError(f"the engine's stream has more than {self._max_choices} choices")
            growing = self._choices[index] = _Growing()
        delta = item.get("delta")
        holder: Mapping[str, Any] = delta if isinstance(delta, dict) else {}
        text = holder.get("content") if delta is not None else item.get("text")
        if isinstance(text, str) and text:
            self._chars += len(text)
            if self._chars <= self._max_chars:
                growing.parts.append(text)
        if holder.get("tool_calls"):
            growing.has_tool_calls = True
        growing.finish_reason = item.get("finish_reason") or growing.finish_reason
        return bool(text) or bool(holder.get("tool_calls")) or any(holder.get(f) for f in _REASONING_FIELDS)

    @property
    def is_finished(self) -> bool:
        """Whether there is a choice and every choice has said why it ended."""
        return bool(self._choices) and all(c.finish_reason is not None for c in self._choices.values())

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices as far as they have come, by index."""
        oversized = self._chars > self._max_chars
        return tuple(
            Choice(index, "".join(c.parts), c.finish_reason, c.has_tool_calls, oversized)
            for index, c in sorted(self._choices.items())
        )
