"""From what an engine answered to a class, and to what the client gets for it.

Owns the decisions that whole answers and streams share; pure, must not import I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from structuredllm_gateway.errors import (
    GatewayError,
    StructuredOutputError,
    UpstreamStatusError,
    UpstreamStreamError,
)
from structuredllm_gateway.openai.answers import Choice, MalformedAnswerError, choices_of
from structuredllm_gateway.openai.errors import (
    EngineError,
    engine_error_of_body,
    openai_type,
)
from structuredllm_gateway.openai.responses import choices_of_response
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.relay.exchange import Answer, Exchange, TryResult
from structuredllm_gateway.relay.raw_text import raw_text
from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.validation.judge import Verdict, judge
from structuredllm_gateway.validation.outcomes import FAULTS, Outcome

_ERROR_WITHIN = 2048
_GRAMMAR_MESSAGE = (
    "The engine ended the answer because its grammar rejected a token it had sampled (structured output "
    "broke inside the engine); no answer was made."
)


def classify_whole(
    exchange: Exchange, status: int, body: bytes, content_type: str, retry_after: str | None = None
) -> TryResult:
    """Class a whole (not streamed) answer of an engine."""
    if status != 200:
        error = status_error(exchange, status, body, retry_after)
        return TryResult(error.outcome, error=error, upstream_status=status)
    answer = Answer(status, body, content_type)
    expected = exchange.expected if exchange.is_judged else None
    if expected is None:
        # An error object names itself at once; long answers (embeddings) are not searched to their end.
        failed = error_in_answer(exchange, body, _ERROR_WITHIN) if body else _malformed("it has no body")
        if failed is None:
            return TryResult(Outcome.PLAIN, answer, upstream_status=status)
        return TryResult(failed.outcome, error=failed, upstream_status=status)
    failed = error_in_answer(exchange, body)
    if failed is not None:
        return TryResult(failed.outcome, error=failed, upstream_status=status)
    read = choices_of_response if exchange.incoming.route is Route.RESPONSES else choices_of
    try:
        choices = read(body)
        verdict = judge(choices, expected)
    except MalformedAnswerError as error:
        return TryResult(Outcome.UPSTREAM_5XX, error=_malformed(str(error)), upstream_status=status)
    refusal = verdict_error(exchange, verdict, choices)
    if refusal is not None:
        return TryResult(verdict.outcome, error=refusal, upstream_status=status)
    return TryResult(verdict.outcome, answer, upstream_status=status)


def error_in_answer(exchange: Exchange, body: bytes, within: int | None = None) -> GatewayError | None:
    """Return the error for an answer of status 200 that is an error object; None when it is not one.

    It must be named `within` bytes from the start. Text of an answer cannot look like it: its quotes are
    escaped.
    """
    found = engine_error_of_body(body) if body.find(b'"error"', 0, within) >= 0 else None
    if found is None:
        return None
    if exchange.request.is_structured and found.is_grammar_reject:
        return grammar_error()
    return _status_error(502, found, Outcome.UPSTREAM_5XX, "the engine answered 200 with an error")


def _malformed(why: str) -> UpstreamStatusError:
    return UpstreamStatusError(
        f"The engine's answer cannot be read: {why}.",
        status=502,
        type_="server_error",
        outcome=Outcome.UPSTREAM_5XX,
        code="upstream_malformed",
    )


def verdict_error(
    exchange: Exchange, verdict: Verdict, choices: Sequence[Choice] = ()
) -> GatewayError | None:
    """Return the refusal of an answer with this verdict, None when it may pass."""
    if verdict.outcome is Outcome.GRAMMAR_REJECTED:
        return grammar_error()
    if exchange.mode is ValidationMode.ENFORCE and verdict.outcome in FAULTS:
        return StructuredOutputError(
            f"{verdict.message} [{verdict.outcome}]",
            outcome=verdict.outcome,
            param=verdict.pointer,
            raw=raw_text(choices, verdict.choice, exchange.raw_chars),
        )
    return None


def grammar_error() -> StructuredOutputError:
    """Return the error for an answer that the engine's grammar ended."""
    return StructuredOutputError(_GRAMMAR_MESSAGE, outcome=Outcome.GRAMMAR_REJECTED)


def status_error(
    exchange: Exchange, status: int, body: bytes, retry_after: str | None = None
) -> GatewayError:
    """Return the error for an engine's error status: its own words, in OpenAI's shape, never wrapped."""
    found = engine_error_of_body(body)
    structured = exchange.request.is_structured
    if structured and status >= 500 and found is not None and found.is_grammar_reject:
        return grammar_error()
    if status < 400:
        # A redirect or another success is nothing that a completion answers with.
        return _status_error(502, found, Outcome.UPSTREAM_5XX, f"the engine answered with HTTP {status}")
    if status >= 500:
        wait = int(retry_after) if retry_after and retry_after.isdigit() else None
        return _status_error(
            status, found, Outcome.UPSTREAM_5XX, f"the engine failed with HTTP {status}", wait
        )
    refused_schema = structured and found is not None and found.is_about_schema
    outcome = Outcome.SCHEMA_REJECTED if refused_schema else Outcome.UPSTREAM_4XX
    return _status_error(status, found, outcome, f"the engine refused the request with HTTP {status}")


def stream_error(exchange: Exchange, found: EngineError) -> GatewayError:
    """Return the error for an error event inside a stream."""
    if exchange.request.is_structured:
        if found.is_grammar_reject:
            return grammar_error()
        if found.is_schema_cause:
            # The engine had answered 200 before it knew. Nothing may have been given out yet.
            return _status_error(400, found, Outcome.SCHEMA_REJECTED, "the engine refused the schema")
    return UpstreamStreamError(found.message)


def _status_error(
    status: int, found: EngineError | None, outcome: Outcome, fallback: str, retry_after: int | None = None
) -> UpstreamStatusError:
    return UpstreamStatusError(
        found.message if found is not None else f"The answer is missing: {fallback}.",
        status=status,
        type_=openai_type(status),
        outcome=outcome,
        # vLLM's code is the HTTP status as a number: a class name says more.
        code=found.code if found is not None and found.code and not found.code.isdigit() else outcome.value,
        param=found.param if found is not None else None,
        retry_after_seconds=retry_after,
    )
