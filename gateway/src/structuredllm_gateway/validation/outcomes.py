"""Outcome classes: one per request, in the header, the log line and the metrics.

Owns the vocabulary, what each class means and the precedence; must not import anything of the gateway. The
reference page is generated from here (`python -m tools.gen_gateway_outcomes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a request."""

    OK = "ok"
    PLAIN = "plain"
    NOT_JSON = "not_json"
    SCHEMA_VIOLATION = "schema_violation"
    TRAILING_OR_LEADING_TEXT = "trailing_or_leading_text"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    IN_REASONING = "in_reasoning"
    WHITESPACE_RUNAWAY = "whitespace_runaway"
    GRAMMAR_REJECTED = "grammar_rejected"
    FINISH_ABNORMAL = "finish_abnormal"
    STREAM_ERROR = "stream_error"
    STREAM_ABORTED = "stream_aborted"
    STREAM_EMPTY = "stream_empty"
    SCHEMA_REJECTED = "schema_rejected"
    UPSTREAM_4XX = "upstream_4xx"
    UPSTREAM_5XX = "upstream_5xx"
    CONNECT_ERROR = "connect_error"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    CLIENT_CLOSED = "client_closed"
    REQUEST_REJECTED = "request_rejected"
    NO_ENDPOINT = "no_endpoint"


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
    Outcome.STREAM_ABORTED,
    Outcome.STREAM_EMPTY,
    Outcome.GRAMMAR_REJECTED,
    Outcome.FINISH_ABNORMAL,
    Outcome.WHITESPACE_RUNAWAY,
    Outcome.TRUNCATED,
    Outcome.IN_REASONING,
    Outcome.EMPTY,
    Outcome.NOT_JSON,
    Outcome.TRAILING_OR_LEADING_TEXT,
    Outcome.SCHEMA_VIOLATION,
    Outcome.OK,
    Outcome.PLAIN,
)
"""Every class; when more than one applies to a choice, or to a request, the first wins.

A cut answer is not JSON because it was cut, so `truncated` comes before what the text is found to be; white
space until the cut is the more exact name of that. OK before PLAIN: one judged choice makes the answer a
judged one.
"""

FAULTS: frozenset[Outcome] = frozenset(
    {
        Outcome.FINISH_ABNORMAL,
        Outcome.WHITESPACE_RUNAWAY,
        Outcome.IN_REASONING,
        Outcome.EMPTY,
        Outcome.NOT_JSON,
        Outcome.TRAILING_OR_LEADING_TEXT,
        Outcome.SCHEMA_VIOLATION,
    }
)
"""Classes of an answer that is not what was asked for: refused in Enforce, counted in Observe."""

CUT: frozenset[Outcome] = frozenset({Outcome.TRUNCATED, Outcome.WHITESPACE_RUNAWAY})
"""Classes of an answer that the token limit has ended: another replica would spend as many tokens again."""

MEANINGS: Mapping[Outcome, str] = {
    Outcome.OK: "A structure was asked for, and every choice was judged to be it.",
    Outcome.PLAIN: (
        "Passed without judgement: no structure was asked for, the validation is Off, or the structure "
        "cannot be validated (counted in `structuredllm_gateway_unvalidated_total`)."
    ),
    Outcome.NOT_JSON: "The text, or the arguments of a call, are not JSON by RFC 8259, read strictly.",
    Outcome.SCHEMA_VIOLATION: (
        "Not what was asked for: JSON that violates the schema, text that does not match the regular "
        "expression or is none of the choices, a call that is missing or of an unknown function."
    ),
    Outcome.TRAILING_OR_LEADING_TEXT: "One JSON value with text before or after it.",
    Outcome.TRUNCATED: "Ended by the token limit (finish reason `length`).",
    Outcome.EMPTY: "No text and no call where one was asked for, or fewer choices than asked for.",
    Outcome.IN_REASONING: (
        "No text, but JSON (or what was asked for) in the reasoning: the engine's reasoning parser does "
        "not fit the model or the request."
    ),
    Outcome.WHITESPACE_RUNAWAY: (
        "White space until the token limit, or until the engine ended the repetition."
    ),
    Outcome.GRAMMAR_REJECTED: "The engine ended the answer because its grammar rejected a sampled token.",
    Outcome.FINISH_ABNORMAL: (
        "Ended for another reason than its own end or the limit (`abort`, `content_filter`, `repetition`, "
        "an unknown one), or for none."
    ),
    Outcome.STREAM_ERROR: "An error event inside a stream, or a stream that cannot be read.",
    Outcome.STREAM_ABORTED: "A stream that broke off, or ended before its answer did.",
    Outcome.STREAM_EMPTY: "A stream that answered 200 and ended without any part of an answer.",
    Outcome.SCHEMA_REJECTED: "The structure asked for was refused, by the gateway or by the engine.",
    Outcome.UPSTREAM_4XX: "The engine refused the request for another reason.",
    Outcome.UPSTREAM_5XX: "The engine failed, or its answer cannot be read.",
    Outcome.CONNECT_ERROR: "No connection to a replica, or it broke before the answer was there.",
    Outcome.TIMEOUT: "No answer, or silence in a stream, for longer than allowed.",
    Outcome.OVERLOADED: "Shed: too many requests in flight.",
    Outcome.CLIENT_CLOSED: "The client went away first.",
    Outcome.REQUEST_REJECTED: (
        "Not JSON, no or an unknown model, too large, a field of a wrong kind: no engine was asked."
    ),
    Outcome.NO_ENDPOINT: "The model is known, no replica serves it.",
}


def first_by_precedence(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the class that stands for all of `outcomes` that apply to one choice or one request.

    Raises:
        ValueError: `outcomes` is empty.
    """
    return min(outcomes, key=PRECEDENCE.index)


def weight_among_choices(outcome: Outcome) -> tuple[bool, int]:
    """Return the sort key by which one choice stands for the answer: the least does.

    Among choices a class that passes never hides one that is refused: an answer with a cut choice and a wrong
    one is wrong. Below that, the precedence decides.
    """
    passes = outcome not in FAULTS and outcome is not Outcome.GRAMMAR_REJECTED
    return passes, PRECEDENCE.index(outcome)
