"""Logs: one JSON object a line on stdout, one line per request. Prompts and answers are never logged.

Owns the configuration of structlog and the form of a line; the lines themselves are written where the facts
are. A line costs one dictionary, one orjson call and one write: a request's line must not cost more than the
request.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import orjson
import structlog

# They write a line for every request, or for what the gateway says itself.
_QUIET = ("httpx", "uvicorn", "uvicorn.error")
_NANOSECONDS = 1_000_000_000


def configure_logging(level: str) -> None:
    """Make structlog and the standard library's loggers write JSON lines at `level` (DEBUG, INFO, ...)."""
    number = logging.getLevelNamesMapping()[level]
    stamp = Stamp(time.time_ns)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_LineFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.processors.format_exc_info, stamp],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render_text],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that names its part of the gateway."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger


class Stamp:
    """Adds level and time (RFC 3339, UTC, microseconds); the second's text is made once a second."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """Take the clock: nanoseconds since the epoch."""
        self._clock = clock
        self._second = -1
        self._text = ""

    def __call__(
        self, _logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Add to one event."""
        second, rest = divmod(self._clock(), _NANOSECONDS)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        event["level"] = "error" if method == "exception" else method
        event["timestamp"] = f"{self._text}.{rest // 1000:06d}Z"
        return event


def render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    """Write an event as one line."""
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)


def _render_text(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    return render(logger, method, event).decode().rstrip("\n")


class _Lines:
    """Writes whole lines; all levels go the same way."""

    def __init__(self, stream: TextIO) -> None:
        buffer = getattr(stream, "buffer", None)
        self._stream = stream
        self._write = getattr(buffer, "write", None)
        self._flush = stream.flush

    def msg(self, line: bytes) -> None:
        if self._write is not None:
            self._write(line)
        else:
            self._stream.write(line.decode())
        self._flush()

    log = debug = info = warning = warn = error = critical = exception = fatal = msg


class _LineFactory:
    """Makes the writer of the stream that was the standard output when logging was configured."""

    def __init__(self, stream: TextIO) -> None:
        self._lines = _Lines(stream)

    def __call__(self, *_: Any) -> _Lines:
        return self._lines
