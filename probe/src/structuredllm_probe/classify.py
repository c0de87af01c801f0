"""What one answer is: its outcome class. Pure; knows nothing of HTTP clients, only of what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jsonschema_rs

from structuredllm_probe.strict_json import NotJsonError, SurroundedError, parse

_DETAIL_CHARS = 200
_NAMED_CAUSE = "grammar_"
_NAMED_REJECT = "grammar_rejected"


class Failure(StrEnum):
    """Why an answer did not come back whole."""

    CONNECT = "connect"  # no response head: refused, cut, unresolvable
    TIMEOUT = "timeout"  # the burst's time was over
    BROKEN = "broken"  # a response head, then no usable answer


class Outcome(StrEnum):
    """Outcome classes; the names are those of the gateway where both have the class."""

    VALID = "valid"
    GRAMMAR_REJECTED = "grammar_rejected"
    SCHEMA_VIOLATION = "schema_violation"
    NOT_JSON = "not_json"
    SURROUNDED = "trailing_or_leading_text"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    STREAM_ERROR = "stream_error"
    CONNECT_ERROR = "connect_error"
    TIMEOUT = "timeout"
    PLAIN_OK = "plain_ok"
    PLAIN_FAILED = "plain_failed"


@dataclass(frozen=True)
class Answer:
    """What came back for one request.

    Attributes:
        status: HTTP status, None when no response head arrived.
        text: content of the first choice ("" when there was none).
        finish_reason: of the first choice, None when it never came.
        error: the `error` object of the body or of a stream event; {"message": body} when it was not JSON.
        failure: set when the answer is not whole; `detail` says more.
        detail: text for people.
    """

    status: int | None = None
    text: str = ""
    finish_reason: str | None = None
    error: Mapping[str, Any] | None = None
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True)
class Result:
    """One request's outcome.

    Attributes:
        structured: the request had a schema.
        outcome: its class.
        reached: the server sent at least a response head.
        timed_out: the time was over before the answer was whole (a plain request's class does not tell).
        detail: text for people, at most 200 characters, may be empty.
    """

    structured: bool
    outcome: Outcome
    reached: bool
    timed_out: bool
    detail: str


def result_of(answer: Answer, schema: Mapping[str, Any] | None) -> Result:
    """Classify an answer to a request with `schema` (None: a plain request)."""
    if schema is None:
        outcome, detail = _classify_plain(answer)
    else:
        outcome, detail = _classify_structured(answer, schema)
    return Result(
        structured=schema is not None,
        outcome=outcome,
        reached=answer.status is not None,
        timed_out=answer.failure is Failure.TIMEOUT,
        detail=_printable(detail),
    )


def is_grammar_reject(status: int, error: Mapping[str, Any]) -> bool:
    """Tell whether an error of a structured request means that the grammar rejected a sampled token.

    An engine with the patch package names the cause in `type`, also for causes that are none. vLLM (0.32,
    entrypoints) without it answers a request whose finish reason is "error" with exactly the message
    "Internal server error", type InternalServerError, code 500, and no other failure of a single request
    with it; in a stream the same object follows HTTP 200. An error of the server that names the FSM or the
    grammar counts too; a 4xx does not: that is a schema the engine refuses to compile.
    """
    code, kind = error.get("code"), error.get("type")
    if isinstance(kind, str) and kind.startswith(_NAMED_CAUSE):
        return kind == _NAMED_REJECT
    if 400 <= status < 500 or (isinstance(code, int) and 400 <= code < 500):
        return False
    message = str(error.get("message", ""))
    exact = (message, kind, code) == ("Internal server error", "InternalServerError", 500)
    return exact or "FSM" in message or "grammar" in message.lower()


def _classify_structured(answer: Answer, schema: Mapping[str, Any]) -> tuple[Outcome, str]:
    broken = _classify_broken(answer, structured=True)
    if broken is not None:
        return broken
    if answer.finish_reason == "length":
        return Outcome.TRUNCATED, "finish_reason length"
    if not answer.text.strip():
        return Outcome.EMPTY, f"no content, finish_reason {answer.finish_reason}"
    try:
        value = parse(answer.text)
    except SurroundedError as error:
        return Outcome.SURROUNDED, str(error)
    except NotJsonError as error:
        return Outcome.NOT_JSON, f"{error}: {answer.text[:80]}"
    try:
        problem = next(jsonschema_rs.validator_for(dict(schema)).iter_errors(value), None)
    except ValueError as error:  # a number the validator cannot hold, e.g. 1e999
        return Outcome.SCHEMA_VIOLATION, str(error)
    if problem is not None:
        return Outcome.SCHEMA_VIOLATION, problem.message
    return Outcome.VALID, ""


def _classify_plain(answer: Answer) -> tuple[Outcome, str]:
    broken = _classify_broken(answer, structured=False)
    if broken is not None:
        return Outcome.PLAIN_FAILED, f"{broken[0].value} {broken[1]}"
    # An empty text is fine: a model may end at once. That it says why it ended is what counts.
    return Outcome.PLAIN_OK, ""


def _classify_broken(answer: Answer, *, structured: bool) -> tuple[Outcome, str] | None:
    """Return the class of an answer that is not whole, None for a whole one."""
    if answer.failure is Failure.TIMEOUT:
        return Outcome.TIMEOUT, answer.detail
    if answer.failure is Failure.CONNECT or answer.status is None:
        return Outcome.CONNECT_ERROR, answer.detail
    status = answer.status
    message = "" if answer.error is None else str(answer.error.get("message", ""))
    rejected = answer.error is not None and is_grammar_reject(status, answer.error)
    if structured and (rejected or answer.finish_reason == "error"):
        return Outcome.GRAMMAR_REJECTED, message or "finish_reason error"
    if 400 <= status < 500:
        return Outcome.HTTP_4XX, f"HTTP {status}: {message}"
    if status != 200:
        return Outcome.HTTP_5XX, f"HTTP {status}: {message}"
    if answer.error is not None:
        return Outcome.STREAM_ERROR, message
    if answer.failure is Failure.BROKEN or answer.finish_reason in {None, "error"}:
        return Outcome.STREAM_ERROR, answer.detail or f"finish_reason {answer.finish_reason}"
    return None


def _printable(text: str) -> str:
    """Bound the length and drop control characters: this text reaches terminals and Kubernetes objects."""
    return "".join(c if c.isprintable() else " " for c in text)[:_DETAIL_CHARS]
