"""Counts of client connections: how many are open, and why the gateway ended those it ended.

Owns the reasons; the protocol counts, the metrics read.
"""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Why the gateway ended a connection by itself; the value is the metric label."""

    HEADER_TIMEOUT = "header_timeout"
    HEADER_TOO_LARGE = "header_too_large"
    BODY_TIMEOUT = "body_timeout"
    IDLE = "idle"
    WRITE_TIMEOUT = "write_timeout"  # the client did not read
    MALFORMED = "malformed"
    REFUSED = "refused"  # above the cap, none could make room
    EVICTED = "evicted"  # waited for a request when the cap was reached


class ConnectionCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        """Start at zero."""
        self.open = 0
        self.ended: dict[EndReason, int] = dict.fromkeys(EndReason, 0)
