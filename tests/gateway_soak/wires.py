"""What the soak's engine sends, byte by byte: HTTP answers whole and streamed, right and broken.

Owns the writing of wires. Must not import the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any


class Ending(StrEnum):
    """What the engine does with the connection after the last byte of a wire."""

    KEEP = "keep"
    CLOSE = "close"  # a FIN, as a process does that ends in order
    ABORT = "abort"  # a RST, as one does that is killed
    HANG = "hang"  # nothing, until the gateway leaves


@dataclass(frozen=True)
class Wire:
    """One HTTP answer: the pieces are written one by one.

    `payload` is the body that a client which reads it right would get; empty when there is none.
    """

    pieces: tuple[bytes, ...]
    payload: bytes = b""
    ending: Ending = Ending.KEEP


def whole(
    body: bytes,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
    declared: int | None = None,
    ending: Ending = Ending.KEEP,
) -> Wire:
    """Return an answer with a length; `declared` is a length that is not the body's."""
    lines = [f"HTTP/1.1 {status} Status", f"content-type: {content_type}"]
    lines.append(f"content-length: {len(body) if declared is None else declared}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return Wire((head + body,), body, ending)


def json_of(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Wire:
    """Return an answer with a JSON body."""
    return whole(json.dumps(value).encode(), status=status, headers=headers)


def error(
    message: str, kind: str, status: int, *, code: object = None, headers: Mapping[str, str] | None = None
) -> Wire:
    """Return an error in OpenAI's shape as engines send it."""
    return json_of(
        error_body(message, kind, status if code is None else code), status=status, headers=headers
    )


def error_body(message: str, kind: str, code: object) -> dict[str, Any]:
    """Return `{"error": ...}`."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def streamed(
    body_pieces: Iterable[bytes], *, ended: bool = True, ending: Ending = Ending.KEEP, declared: int = -1
) -> Wire:
    """Return an event stream, chunked; with `declared` >= 0 a length is stated instead."""
    parts = [piece for piece in body_pieces if piece]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    if declared >= 0:
        first = head + b"content-length: %d\r\n\r\n" % declared
        return Wire((first, *parts), b"".join(parts), ending)
    pieces = [head + b"transfer-encoding: chunked\r\n\r\n"]
    pieces += [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
    if ended:
        pieces.append(b"0\r\n\r\n")
    return Wire(tuple(pieces), b"".join(parts), ending)


@dataclass(frozen=True)
class Framing:
    """How events are written; all of these are the same stream to a client that reads SSE right."""

    line_end: bytes = b"\n"
    field_name: bytes = b"data: "
    comments: bool = False
    byte_order_mark: bool = False
    named: bool = False

    def event(self, payload: Any, rng: Random) -> bytes:
        """Write one event; bytes go out as they are, anything else as JSON."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        lines = [self.field_name + data]
        kind = payload.get("type") if isinstance(payload, dict) else None
        if isinstance(kind, str) and kind.startswith("response."):
            lines.insert(0, b"event: " + kind.encode())
        elif self.named and rng.random() < 0.5:
            lines.insert(0, b"event: message")
        if self.comments and rng.random() < 0.5:
            lines.insert(0, b": keep-alive")
        return self.line_end.join(lines) + self.line_end * 2


def events(payloads: Sequence[Any], framing: Framing, rng: Random, *, done: bool = True) -> bytes:
    """Write a stream of events."""
    start = b"\xef\xbb\xbf" if framing.byte_order_mark else b""
    if framing.comments:
        start += b": hello" + framing.line_end * 2
    end = framing.field_name + b"[DONE]" + framing.line_end * 2 if done else b""
    return start + b"".join(framing.event(payload, rng) for payload in payloads) + end


def cut(data: bytes, rng: Random) -> list[bytes]:
    """Cut bytes at random places: between events, inside of one, inside of a character."""
    if rng.random() < 0.3 or len(data) < 3:
        return [data]
    places = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, rng.randrange(1, 24))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@dataclass
class Script:
    """What the engine sends for each case, and what it was asked."""

    wires: dict[int, Wire] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
