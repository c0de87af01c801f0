"""What the engines answer to the responses API: whole, and as a stream of named events.

Owns the reading of response objects and their events (OpenAI's API reference, vLLM's
`entrypoints/openai/responses`). Each text part of a message becomes a choice, because clients parse them one
by one. Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from structuredllm_gateway.openai.answers import (
    MAX_REASONING_CHARS,
    Choice,
    MalformedAnswerError,
    ToolCall,
    answer_object,
)

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TEXT_DELTA = "response.output_text.delta"
_CALL_DELTA = "response.function_call_arguments.delta"
_REASONING_DELTAS = frozenset(
    {"response.reasoning_text.delta", "response.reasoning.delta", "response.reasoning_summary_text.delta"}
)
_PARTS = frozenset({_TEXT_DELTA, _CALL_DELTA, "response.output_item.done", *_REASONING_DELTAS})
_MAX_PARTS = 128
_FINISH_REASONS: Mapping[str, str] = {"completed": "stop", "failed": "error", "cancelled": "abort"}


def choices_of_response(body: bytes) -> tuple[Choice, ...]:
    """Return the parts of a whole response as choices.

    Raises:
        MalformedAnswerError: the body is not a response.
    """
    return choices_of_object(answer_object(body))


def choices_of_object(response: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the parts of a response object as choices.

    Raises:
        MalformedAnswerError: it is not a response.
    """
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise MalformedAnswerError("the engine's answer has no list of output items")
    texts: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for item in output:
        kind = item.get("type")
        if kind == "message":
            texts += _texts(item.get("content"), "output_text")
        elif kind == "function_call":
            calls.append(_call(item))
        elif kind == "reasoning":
            reasoning += _texts(item.get("content"), None) + _texts(item.get("summary"), None)
    return _choices(texts, tuple(calls), "".join(reasoning), _finish_reason(response))


def _choices(
    texts: Sequence[str | None], calls: tuple[ToolCall, ...], reasoning: str, finish: str | None
) -> tuple[Choice, ...]:
    kept = reasoning[:MAX_REASONING_CHARS]
    return tuple(Choice(index, text, finish, calls, kept) for index, text in enumerate(texts or [None]))


def _texts(parts: Any, kind: str | None) -> list[str]:
    if parts is None:
        return []
    if not isinstance(parts, list):
        raise MalformedAnswerError("an output item of the engine's answer has content that is not a list")
    found: list[str] = []
    for part in parts:
        if not isinstance(part, dict) or kind not in (None, part.get("type")):
            continue
        if not isinstance(text := part.get("text"), str):
            raise MalformedAnswerError("an output item of the engine's answer has content that is not text")
        found.append(text)
    return found


def _call(item: Mapping[str, Any]) -> ToolCall:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise MalformedAnswerError("a function call in the engine's answer has no name or no arguments")
    return ToolCall(name, arguments)


def _finish_reason(response: Mapping[str, Any]) -> str | None:
    """Return the word a completion would have used; None when the response says that it is not finished."""
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return "length" if reason in (None, "max_output_tokens") else str(reason)
    if status in ("in_progress", "queued", None):
        return None
    return _FINISH_REASONS.get(status, str(status))


def _index(event: Mapping[str, Any], name: str) -> int:
    value = event.get(name, 0)
    if not isinstance(value, int):
        raise MalformedAnswerError(f"an event of the engine's stream has an {name} that is not a number")
    return value


@dataclass
class _Part:
    parts: list[str] = field(default_factory=list)
    name: str = ""


class ResponsesAssembler:
    """An `Assembler` of the responses API's events.

    The text is there twice, in pieces and in the last event; a client may use either, so the pieces and the
    whole are both given as choices.
    """

    def __init__(self, max_chars: int, *, keeps: bool = True) -> None:
        """Start empty; at most `max_chars` characters are kept, none with `keeps` false."""
        self._max_chars = max_chars
        self._keeps = keeps
        self._chars = 0
        self._reasoning_chars = 0
        self._texts: dict[tuple[int, int], _Part] = {}
        self._calls: dict[int, _Part] = {}
        self._reasoning: list[str] = []
        self._final: Mapping[str, Any] | None = None

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """See `Assembler.feed`."""
        kind = chunk.get("type")
        if kind in _TERMINAL:
            response = chunk.get("response")
            if not isinstance(response, dict):
                raise MalformedAnswerError("the last event of the engine's stream has no response")
            self._final = response
            return True
        if not isinstance(kind, str):
            raise MalformedAnswerError("an event of the engine's stream has no type")
        if self._keeps:
            self._keep_part(kind, chunk)
        return kind in _PARTS

    def _keep_part(self, kind: str, event: Mapping[str, Any]) -> None:
        place = _index(event, "output_index")
        if kind == "response.output_item.added":
            item = event.get("item")
            if isinstance(item, dict) and item.get("type") == "function_call":
                self._part(self._calls, place).name = str(item.get("name") or "")
            return
        if kind not in _PARTS or kind == "response.output_item.done":
            return
        delta = event.get("delta")
        if not isinstance(delta, str):
            raise MalformedAnswerError("an event of the engine's stream has a delta that is not text")
        if kind in _REASONING_DELTAS:
            if self._reasoning_chars < MAX_REASONING_CHARS:
                self._reasoning_chars += len(delta)
                self._reasoning.append(delta)
            return
        self._chars += len(delta)
        if self._chars > self._max_chars:
            raise MalformedAnswerError(f"the answer is longer than {self._max_chars} characters")
        if kind == _TEXT_DELTA:
            key = (place, _index(event, "content_index"))
            self._part(self._texts, key).parts.append(delta)
        else:
            self._part(self._calls, place).parts.append(delta)

    def _part(self, kept: dict[Any, _Part], key: Any) -> _Part:
        if key not in kept and len(kept) >= _MAX_PARTS:
            raise MalformedAnswerError(f"the engine's answer has more than {_MAX_PARTS} parts")
        return kept.setdefault(key, _Part())

    @property
    def is_finished(self) -> bool:
        """Whether the last event was there."""
        return self._final is not None

    @property
    def ends_stream(self) -> bool:
        """See `Assembler.ends_stream`."""
        return self._final is not None

    def choices(self) -> tuple[Choice, ...]:
        """Return the parts as they came in pieces, then those of the last event."""
        finish = None if self._final is None else _finish_reason(self._final)
        texts = ["".join(part.parts) for part in self._texts.values()]
        calls = tuple(ToolCall(part.name, "".join(part.parts)) for part in self._calls.values())
        pieces = _choices(texts, calls, "".join(self._reasoning), finish)
        if self._final is None or not isinstance(self._final.get("output"), list):
            return pieces
        whole = choices_of_object(self._final)
        return whole if not (texts or calls) else pieces + whole

    def matters(self, data: bytes) -> bool:
        """See `Assembler.matters`."""
        return b'"error"' in data or b'"response.completed"' in data or b'"response.incomplete"' in data
