"""Server-sent events: an incremental parser that keeps the bytes, and the few events that we write.

Owns the framing (WHATWG HTML, section 9.2). Pure: must not import I/O. Events come out whole however the
bytes were cut; line ends may be LF, CRLF or CR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"

_EOL = rb"(?:\r\n|\n|\r(?!\n))"
_EVENT_END = re.compile(_EOL + _EOL)
_LINES = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_END = 4


class EventTooLongError(ValueError):
    """An event outgrew the limit without ending."""


@dataclass(frozen=True)
class SseEvent:
    """One event: its bytes as received with the blank line, and its data (None = it has none)."""

    raw: bytes
    data: bytes | None

    @property
    def is_done(self) -> bool:
        """Whether this is OpenAI's end mark."""
        return self.data == b"[DONE]"


class SseParser:
    """Cuts a byte stream into events; holds at most `max_event_bytes` of one that is not complete."""

    def __init__(self, max_event_bytes: int) -> None:
        """Start with nothing held."""
        self._max_event_bytes = max_event_bytes
        self._held = b""
        self._searched = 0
        self._is_at_start = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take bytes, return the events they complete.

        Raises:
            EventTooLongError: the event that is not complete is above the limit.
        """
        held = self._held + chunk if self._held else chunk
        events: list[SseEvent] = []
        start, search = 0, self._searched
        while end := _EVENT_END.search(held, search):
            events.append(self._event(held[start : end.end()]))
            start = search = end.end()
        self._held = held[start:]
        self._searched = max(0, len(self._held) - _LONGEST_END)
        if len(self._held) > self._max_event_bytes:
            raise EventTooLongError(f"an event is longer than {self._max_event_bytes} bytes")
        return events

    def finish(self) -> SseEvent | None:
        """Return what is left when the stream ends, as an event; None when nothing is.

        It gets the blank line that it lacks: what is written after it must not become a part of it.
        """
        held, self._held, self._searched = self._held, b"", 0
        return self._event(held + b"\n\n") if held.strip(b"\r\n") else None

    def _event(self, raw: bytes) -> SseEvent:
        read = raw
        if self._is_at_start:
            # One byte order mark may begin a stream. A client drops it, so that the first line is read.
            read = raw.removeprefix(_BYTE_ORDER_MARK)
            self._is_at_start = False
        values = [
            line[6:] if line.startswith(b"data: ") else line[5:]
            for line in _LINES.split(read)
            if line.startswith(b"data:")
        ]
        return SseEvent(raw, b"\n".join(values) if values else None)


def data_event(payload: bytes) -> bytes:
    """Write one event with `payload` (no line ends in it) as its data."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    """Write one event with a name, as the responses API has them."""
    return b"event: " + name.encode() + b"\n" + data_event(payload)


def verdict_comment(outcome: str) -> bytes:
    """Write the verdict of a stream as a comment, which every SSE client must ignore."""
    return b": structuredllm outcome=" + outcome.encode() + b"\n\n"
