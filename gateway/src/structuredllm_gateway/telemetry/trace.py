"""W3C trace context: the id of the trace a request belongs to, made when it brings none.

Owns the header's form (https://www.w3.org/TR/trace-context/); the gateway opens no span of its own, so a
good header is passed on unchanged.
"""

from __future__ import annotations

import random
import re

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
_FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(value: bytes) -> bool:
    """Whether a value is a usable traceparent; other versions may have more after the known fields."""
    if value[:2] == b"00":
        return len(value) == 55 and _FORM.fullmatch(value) is not None
    return len(value) <= 512 and _FORM.match(value) is not None and value[55:56] in (b"", b"-")


def trace_id_of(value: bytes) -> str:
    """Return the 32 hex digits of the trace in a usable traceparent."""
    return value[3:35].decode("ascii")


def new_traceparent(rng: random.Random) -> bytes:
    """Return a traceparent that starts a trace, not sampled: nobody upstream has asked for it."""
    trace, span = rng.getrandbits(128) or 1, rng.getrandbits(64) or 1
    return b"00-%032x-%016x-00" % (trace, span)
