"""An incremental parser of server-sent events (WHATWG HTML, section 9.2), for any split of the bytes.

Owns the framing only; what a `data` text means is the caller's. No I/O.
"""

from __future__ import annotations

from structuredllm_probe.errors import SseError

MAX_EVENT_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Turns bytes into the `data` texts of complete events. One instance per stream."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """Start at the beginning of a stream; an event larger than `max_event_bytes` is an error."""
        self._max = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes, in order; its lines joined by newlines.

        Raises:
            SseError: one event exceeds the limit.
        """
        events: list[str] = []
        position = 0
        if self._after_cr and chunk:
            # A CR ended the last chunk: an LF now is the second half of the same line end.
            self._after_cr = False
            if chunk[:1] == b"\n":
                position = 1
        while position < len(chunk):
            end = _line_end(chunk, position)
            self._grow(chunk[position : end if end >= 0 else len(chunk)])
            if end < 0:
                break
            self._finish_line(events)
            position = end + 1
            if chunk[end : end + 1] == b"\r":
                if position == len(chunk):
                    self._after_cr = True
                elif chunk[position : position + 1] == b"\n":
                    position += 1
        return events

    def _grow(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max:
            raise SseError(f"a server-sent event is larger than {self._max} bytes; the stream is not usable")
        self._line += part

    def _finish_line(self, events: list[str]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data).decode("utf-8", errors="replace"))
            self._data = []
            self._size = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        else:
            # Comments and other fields hold no data, so that endless keep-alive comments do not add up.
            self._size -= len(line)


def _line_end(chunk: bytes, start: int) -> int:
    """Return the position of the first CR or LF at or after `start`, or -1."""
    lf = chunk.find(b"\n", start)
    cr = chunk.find(b"\r", start, lf if lf >= 0 else len(chunk))
    return cr if cr >= 0 else lf
