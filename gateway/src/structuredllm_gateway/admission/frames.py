"""The memory of what requests ask for, by their frame: all fields that say something of the structure.

Owns the key and the bounds. Clients ask thousands of times with one schema and ever new messages, and what
is found out of a request (its parts, its structure, its compiled validator) depends on the frame alone. Only
what passed is remembered. Pure: must not import I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from structuredllm_gateway.admission.admission import Unenforced
from structuredllm_gateway.openai.requests import CompletionRequest
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.validation.expectation import Expectation

# What neither admission nor the request parser reads, and what differs from request to request.
_FREE = frozenset(
    {
        *("messages", "input", "instructions", "user", "metadata", "seed", "temperature", "top_p", "stop"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "stream_options"),
        *("safety_identifier", "prompt_cache_key", "frequency_penalty", "presence_penalty"),
    }
)
_MAX_FRAME_BYTES = 64 * 1024
_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Frame:
    """What a frame asks for."""

    request: CompletionRequest
    unenforced: tuple[Unenforced, ...]
    expected: Expectation | None


class FrameMemory:
    """Frames that passed; the one unused longest goes first. Not for threads."""

    def __init__(self, capacity: int, read_fields: Iterable[str] = ()) -> None:
        """Start empty; `read_fields` are names that admission looks at beside its own."""
        self._capacity = capacity
        self._read = frozenset(read_fields)
        self._free = _FREE - self._read
        self._frames: OrderedDict[bytes, Frame] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def key(self, whole: Mapping[str, Any], route: Route) -> bytes | None:
        """Return the frame of a body as bytes; None for one that is not remembered."""
        free = self._free
        frame = {name: value for name, value in whole.items() if name not in free}
        prompt = frame.get("prompt")
        if prompt is not None and "prompt" not in self._read:
            # Of prompts only their number is read, and token ids are one prompt.
            is_list = isinstance(prompt, list) and prompt
            frame["prompt"] = [len(prompt), isinstance(prompt[0], int)] if is_list else None
        try:
            text = orjson.dumps(frame)
        except (TypeError, RecursionError):
            return None  # an integer of more than 64 bits, or nested too deep
        return route.encode() + text if len(text) <= _MAX_FRAME_BYTES else None

    def get(self, key: bytes | None) -> Frame | None:
        """Return what is remembered."""
        found = self._frames.get(key) if key is not None else None
        if found is not None and key is not None:
            self._frames.move_to_end(key)
        return found

    def keep(self, key: bytes | None, frame: Frame) -> None:
        """Remember a frame, unless the body must be rewritten, for which all of it is needed."""
        if key is None or key in self._frames or frame.request.rewritten is not None:
            return
        self._frames[key] = frame
        self._bytes += len(key)
        while len(self._frames) > self._capacity or self._bytes > _MAX_BYTES:
            self._bytes -= len(self._frames.popitem(last=False)[0])
