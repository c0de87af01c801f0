"""Outcome classes: one per request, in the header, the log line and the metrics.

Owns the vocabulary and the precedence; must not import anything of the gateway.

Precedence, when more than one class applies to a request (first wins): upstream error > grammar_rejected >
truncated > empty > not_json, trailing_or_leading_text > schema_violation > ok. A cut answer is not JSON
because it was cut, so `truncated` is looked at before the text is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a request."""

    OK = "ok"  # structured, and judged to be what was asked for
    PLAIN = "plain"  # passed without judgement: unstructured, validation Off, or not validatable
    NOT_JSON = "not_json"
    SCHEMA_VIOLATION = "schema_violation"
    TRAILING_OR_LEADING_TEXT = "trailing_or_leading_text"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    GRAMMAR_REJECTED = "grammar_rejected"
    STREAM_ERROR = "stream_error"
    SCHEMA_REJECTED = "schema_rejected"
    UPSTREAM_4XX = "upstream_4xx"
    UPSTREAM_5XX = "upstream_5xx"
    CONNECT_ERROR = "connect_error"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    CLIENT_CLOSED = "client_closed"
    REQUEST_REJECTED = "request_rejected"  # not JSON, no or unknown model, too large: nothing sent upstream
    NO_ENDPOINT = "no_endpoint"  # known model, no serving replica


PRECEDENCE: tuple[Outcome, ...] = (
    Outcome.CLIENT_CLOSED,
    Outcome.REQUEST_REJECTED,
    Outcome.SCHEMA_REJECTED,
    Outcome.OVERLOADED,
    Outcome.NO_ENDPOINT,
    Outcome.CONNECT_ERROR,
    Outcome.TIMEOUT,
    Outcome.UPSTREAM_4XX,
    Outcome.UPSTREAM_5XX,
    Outcome.STREAM_ERROR,
    Outcome.GRAMMAR_REJECTED,
    Outcome.TRUNCATED,
    Outcome.EMPTY,
    Outcome.NOT_JSON,
    Outcome.TRAILING_OR_LEADING_TEXT,
    Outcome.SCHEMA_VIOLATION,
    Outcome.OK,
    Outcome.PLAIN,
)
"""Every class, the one that wins first. OK before PLAIN: one judged choice makes the answer a judged one."""

FAULTS: frozenset[Outcome] = frozenset(
    {Outcome.EMPTY, Outcome.NOT_JSON, Outcome.TRAILING_OR_LEADING_TEXT, Outcome.SCHEMA_VIOLATION}
)
"""Classes of a complete answer that is not what was asked for: refused in Enforce, counted in Observe."""


def first_by_precedence(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the class that stands for all of `outcomes` (for example of the choices of one answer).

    Raises:
        ValueError: `outcomes` is empty.
    """
    return min(outcomes, key=PRECEDENCE.index)
