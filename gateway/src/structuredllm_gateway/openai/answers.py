"""What the engines answer to chat and text completions: whole, and as a stream put together chunk by chunk.

Owns the reading of completion bodies and chunks (OpenAI's API reference, vLLM's `entrypoints/openai`
protocol) and the vocabulary of an answer. Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

# Where reasoning models put their thinking; part of the stream but not of the answer.
_REASONING_FIELDS = ("reasoning", "reasoning_content")
# Enough to tell that an answer was put there; longer thinking is not kept.
MAX_REASONING_CHARS = 256 * 1024
_MAX_TOOL_CALLS = 128


class MalformedAnswerError(ValueError):
    """A body or chunk that is not an answer, or one that is above a limit."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a function: its name ("" = none came) and its arguments, which should be JSON."""

    name: str
    arguments: str


@dataclass(slots=True)
class Choice:
    """One choice: its text (None or "" = none), why it ended (None = it did not), and what else it holds."""

    index: int
    text: str | None
    finish_reason: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


class Assembler(Protocol):
    """Puts a stream together."""

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """Take the JSON of one event; return whether it carries part of an answer.

        Raises:
            MalformedAnswerError: not an event of an answer, or the answer is above a limit.
        """
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the answer has come to an end of its own."""
        ...

    @property
    def ends_stream(self) -> bool:
        """Whether the last event that was fed is the last of its stream."""
        ...

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices as far as they have come."""
        ...

    def matters(self, data: bytes) -> bool:
        """Tell, without parsing, whether an event may be an error or an end."""
        ...


def choices_of(body: bytes) -> tuple[Choice, ...]:
    """Return the choices of a whole chat or text completion.

    Raises:
        MalformedAnswerError: the body is not a completion.
    """
    items = answer_object(body).get("choices")
    if not isinstance(items, list):
        raise MalformedAnswerError("the engine's answer has no choices")
    return tuple([_choice(position, item) for position, item in enumerate(items)])


def answer_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of an answer.

    Raises:
        MalformedAnswerError: the body is not one.
    """
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedAnswerError(f"the engine's answer is not JSON: {error}") from error
    if not isinstance(whole, dict):
        raise MalformedAnswerError("the engine's answer is not a JSON object")
    return whole


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
        _reason(item),
        tuple([_tool_call(call) for call in _calls(holder)]),
        _reasoning(holder)[:MAX_REASONING_CHARS],
    )


def _reason(item: Mapping[str, Any]) -> str | None:
    reason = item.get("finish_reason")
    if reason is not None and not isinstance(reason, str):
        raise MalformedAnswerError("a finish reason in the engine's answer is not text")
    return reason or None


def _calls(holder: Mapping[str, Any]) -> list[Any]:
    calls = holder.get("tool_calls")
    if not calls:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise MalformedAnswerError("the tool calls in the engine's answer are not a list of objects")
    if len(calls) > _MAX_TOOL_CALLS:
        raise MalformedAnswerError(f"the engine's answer has more than {_MAX_TOOL_CALLS} tool calls")
    return calls


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    holder: Mapping[str, Any] = function if isinstance(function, dict) else {}
    name, arguments = holder.get("name"), holder.get("arguments")
    if not isinstance(name, str | None) or not isinstance(arguments, str | None):
        raise MalformedAnswerError(
            "a tool call in the engine's answer has a name or arguments that are not text"
        )
    return ToolCall(name or "", arguments or "")


def _reasoning(holder: Mapping[str, Any]) -> str:
    for name in _REASONING_FIELDS:
        value = holder.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


@dataclass
class _GrowingCall:
    name: str = ""
    parts: list[str] = field(default_factory=list)


@dataclass
class _Growing:
    parts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _GrowingCall] = field(default_factory=dict)
    finish_reason: str | None = None


class StreamAssembler:
    """An `Assembler` of chat and text completion chunks.

    Keeps at most `max_chars` characters of text and arguments of `max_choices` choices; with `keeps` false no
    text at all, only how the choices ended.
    """

    ends_stream = False

    def __init__(self, max_chars: int, max_choices: int = 128, *, keeps: bool = True) -> None:
        """Start empty."""
        self._max_chars = max_chars
        self._max_choices = max_choices
        self._keeps = keeps
        self._chars = 0
        self._reasoning_chars = 0
        self._choices: dict[int, _Growing] = {}

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """See `Assembler.feed`; text, reasoning and tool calls are parts of an answer."""
        items = chunk.get("choices", [])
        if not isinstance(items, list):
            raise MalformedAnswerError("a chunk of the engine's stream has choices that are not a list")
        parts = [self._feed_choice(item) for item in items]
        return any(parts)

    def _feed_choice(self, item: Any) -> bool:
        if not isinstance(item, dict):
            raise MalformedAnswerError("a choice in the engine's stream is not an object")
        growing = self._growing(item.get("index", 0))
        delta = item.get("delta")
        holder: Mapping[str, Any] = delta if isinstance(delta, dict) else {}
        text = holder.get("content") if delta is not None else item.get("text")
        if text is not None and not isinstance(text, str):
            raise MalformedAnswerError("a chunk of the engine's stream has content that is not text")
        if text:
            self._keep(growing.parts, text)
        calls = _calls(holder)
        for position, call in enumerate(calls):
            self._feed_call(growing, call, position)
        reasoning = _reasoning(holder)
        if reasoning and self._keeps and self._reasoning_chars < MAX_REASONING_CHARS:
            self._reasoning_chars += len(reasoning)
            growing.reasoning.append(reasoning)
        growing.finish_reason = _reason(item) or growing.finish_reason
        return bool(text) or bool(calls) or any(holder.get(f) for f in _REASONING_FIELDS)

    def _growing(self, index: Any) -> _Growing:
        if not isinstance(index, int):
            raise MalformedAnswerError("a choice in the engine's stream has an index that is not a number")
        growing = self._choices.get(index)
        if growing is None:
            if len(self._choices) >= self._max_choices:
                raise MalformedAnswerError(f"the engine's stream has more than {self._max_choices} choices")
            growing = self._choices[index] = _Growing()
        return growing

    def _feed_call(self, growing: _Growing, call: Mapping[str, Any], position: int) -> None:
        """Engines send a name once, with or without a part of the arguments, or again in every chunk."""
        index = call.get("index", position)
        if not isinstance(index, int):
            raise MalformedAnswerError("a tool call in the engine's stream has an index that is not a number")
        kept = growing.calls.get(index)
        if kept is None:
            if len(growing.calls) >= _MAX_TOOL_CALLS:
                raise MalformedAnswerError(f"the engine's stream has more than {_MAX_TOOL_CALLS} tool calls")
            kept = growing.calls[index] = _GrowingCall()
        part = _tool_call(call)
        kept.name = kept.name or part.name
        if part.arguments:
            self._keep(kept.parts, part.arguments)

    def _keep(self, parts: list[str], text: str) -> None:
        if not self._keeps:
            return
        self._chars += len(text)
        if self._chars > self._max_chars:
            raise MalformedAnswerError(f"the answer is longer than {self._max_chars} characters")
        parts.append(text)

    @property
    def is_finished(self) -> bool:
        """Whether there is a choice and every choice has said why it ended."""
        return bool(self._choices) and all(c.finish_reason is not None for c in self._choices.values())

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices as far as they have come, by index."""
        return tuple(
            Choice(
                index,
                "".join(c.parts),
                c.finish_reason,
                tuple(ToolCall(call.name, "".join(call.parts)) for _, call in sorted(c.calls.items())),
                "".join(c.reasoning),
            )
            for index, c in sorted(self._choices.items())
        )

    def matters(self, data: bytes) -> bool:
        """See `Assembler.matters`."""
        return b'"error"' in data or b'"finish_reason":"' in data.replace(b" ", b"")
