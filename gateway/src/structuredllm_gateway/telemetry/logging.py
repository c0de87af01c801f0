"""Logs: one JSON object a line on stdout, one line per request. Prompts and answers are never logged.

Owns the configuration of structlog; the lines themselves are written where the facts are.
"""

from __future__ import annotations

import logging
import sys

import structlog

# They write a line for every request, or for what the gateway says itself.
_QUIET = ("httpx", "uvicorn", "uvicorn.error")


def configure_logging(level: str) -> None:
    """Make structlog and the standard library's loggers write JSON lines at `level` (DEBUG, INFO, ...)."""
    number = logging.getLevelNamesMapping()[level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
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
