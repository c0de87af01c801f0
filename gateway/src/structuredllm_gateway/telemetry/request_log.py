"""The line of each request, written past structlog's layers, which cost more than the line.

Owns the writing: one dictionary, one orjson call, and one write for all requests that end in the same turn of
the loop. The lines are the same as `telemetry.logging` would write, on the same stream, in the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson
import structlog

from structuredllm_gateway.telemetry.logging import Stamp

EVENT = "request"
LineWriter = Callable[[dict[str, Any]], None]


def through(log: structlog.typing.FilteringBoundLogger) -> LineWriter:
    """Return a writer of request lines that uses `log`."""
    return lambda facts: log.info(EVENT, **facts)


class RequestLines:
    """Writes request lines to a stream; used inside of a running loop."""

    def __init__(
        self, stream: TextIO, context: Mapping[str, Any], clock: Callable[[], int] = time.time_ns
    ) -> None:
        """Take the stream and what every line says; `clock` is nanoseconds since the epoch."""
        self._stream = stream
        # What every line begins with is written once; a line's own facts follow it.
        self._start = orjson.dumps(dict(context), default=repr)[:-1]
        self._joint = b"," if context else b""
        self._stamp = Stamp(clock)
        self._pending: list[bytes] = []

    def __call__(self, facts: dict[str, Any]) -> None:
        """Write one line at the end of this turn of the loop."""
        facts["event"] = EVENT
        self._stamp(None, "info", facts)
        own = orjson.dumps(facts, default=repr, option=orjson.OPT_APPEND_NEWLINE)
        pending = self._pending
        pending.append(b"%b%b%b" % (self._start, self._joint, own[1:]))
        if len(pending) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what is pending now."""
        pending, self._pending = self._pending, []
        data = b"".join(pending)
        binary = getattr(self._stream, "buffer", None)
        if binary is not None:
            binary.write(data)
        else:
            self._stream.write(data.decode())
        self._stream.flush()
