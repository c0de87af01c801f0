"""What a burst says about a server: verdict, reason and one sentence. Pure, over the results of a burst.

Decisions where the answer is not obvious:
- One faulty structured answer is enough for a fault: a grammar makes wrong answers impossible, not rare.
- A plain request that fails while structured ones pass is Inconclusive: no structured fault is shown, but the
  mix that provokes one was not tested either, since failed plain requests leave no steps in the pipeline.
- Other server errors (5xx without the marks of a grammar reject, cut streams) are Inconclusive as well: they
  prove nothing about grammars, and a server that gives them is not shown healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from structuredllm_probe.classify import Outcome, Result

_WRONG = (Outcome.SCHEMA_VIOLATION, Outcome.NOT_JSON, Outcome.SURROUNDED, Outcome.EMPTY)
_SERVER_ERRORS = (Outcome.HTTP_5XX, Outcome.STREAM_ERROR, Outcome.CONNECT_ERROR)


class Verdict(StrEnum):
    """Healthy, faulty, or not decidable."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class BurstReport:
    """The result of a burst.

    Attributes:
        verdict: healthy, faulty or unknown.
        reason: BurstPassed, GrammarRejected, SchemaInvalid, ProbeTimeout, EngineUnreachable or Inconclusive.
        message: one sentence: what happened, the likely cause, what to do.
        counts: requests by outcome class, without zeros, in the order of `Outcome`.
        requests: requests of the burst.
        structured: those of them with a schema.
        duration_seconds: wall time of the burst.
    """

    verdict: Verdict
    reason: str
    message: str
    counts: Mapping[str, int]
    requests: int
    structured: int
    duration_seconds: float


def report_of(
    results: Sequence[Result], *, duration_seconds: float, timeout_seconds: float, health_answered: bool
) -> BurstReport:
    """Judge a burst.

    Args:
        results: one per request, at least one of them structured.
        duration_seconds: how long the burst took.
        timeout_seconds: the limit it had.
        health_answered: the server answered GET /health with any status while the burst ran.
    """
    counted = Counter(result.outcome for result in results)
    counts = {outcome.value: counted[outcome] for outcome in Outcome if counted[outcome]}
    structured = sum(result.structured for result in results)
    verdict, reason, message = _judge(
        results, counted, structured, duration_seconds, timeout_seconds, health_answered
    )
    return BurstReport(verdict, reason, message, counts, len(results), structured, duration_seconds)


def _judge(
    results: Sequence[Result],
    counted: Counter[Outcome],
    structured: int,
    duration: float,
    timeout: float,
    health_answered: bool,
) -> tuple[Verdict, str, str]:
    rejected = counted[Outcome.GRAMMAR_REJECTED]
    if rejected:
        return (
            Verdict.FAULTY,
            "GrammarRejected",
            f"{rejected} of {structured} structured answers failed because the grammar rejected a sampled "
            "token; the likely cause is the order fault of pipeline parallelism with async scheduling: "
            "run an engine that has the patches, or switch that off (--no-async-scheduling)",
        )
    wrong = sum(counted[outcome] for outcome in _WRONG)
    if wrong:
        return (
            Verdict.FAULTY,
            "SchemaInvalid",
            f"{wrong} of {structured} structured answers do not satisfy their schema "
            f"({_classes(counted, _WRONG)}; e.g. {_example(results, _WRONG)}); the engine does not enforce "
            "the grammar: check its structured output backend, reasoning parser and patches",
        )
    late = sum(result.timed_out for result in results)
    if not health_answered and not any(result.reached for result in results):
        failures = (Outcome.CONNECT_ERROR, Outcome.TIMEOUT)
        return (
            Verdict.UNKNOWN,
            "EngineUnreachable",
            f"none of {len(results)} requests got a response ({_example(results, failures)}); check the "
            "address, that the engine is running and that the network lets the probe through",
        )
    if late:
        return (
            Verdict.FAULTY,
            "ProbeTimeout",
            f"{late} of {len(results)} requests had no whole answer after {timeout:g} s although the "
            "server accepts connections; the engine hangs or is far too slow: look at its log for a stuck "
            "step, restart it, or raise the timeout",
        )
    refused = counted[Outcome.HTTP_4XX]
    if refused:
        return _inconclusive(
            f"the server refused {refused} of {structured} structured requests "
            f"({_example(results, (Outcome.HTTP_4XX,))}); check the model name, the API key and that the "
            "server supports response_format json_schema"
        )
    errors = sum(counted[outcome] for outcome in _SERVER_ERRORS)
    if errors:
        return _inconclusive(
            f"{errors} of {structured} structured requests failed without a sign of a grammar reject "
            f"({_classes(counted, _SERVER_ERRORS)}; e.g. {_example(results, _SERVER_ERRORS)}); look at the "
            "engine's log and probe again"
        )
    truncated, valid = counted[Outcome.TRUNCATED], counted[Outcome.VALID]
    if truncated > valid:
        return _inconclusive(
            f"{truncated} of {structured} structured answers were cut off at the token limit; set "
            "disable_any_whitespace in the engine's structured output settings or raise max_tokens"
        )
    if counted[Outcome.PLAIN_FAILED]:
        return _inconclusive(
            f"all structured answers passed but {counted[Outcome.PLAIN_FAILED]} of "
            f"{len(results) - structured} plain requests failed "
            f"({_example(results, (Outcome.PLAIN_FAILED,))}), so the mix of both was not tested; look at "
            "the engine's log and probe again"
        )
    cut = f", {truncated} cut off at the token limit" if truncated else ""
    return (
        Verdict.HEALTHY,
        "BurstPassed",
        f"{valid} of {structured} structured answers valid{cut} in {duration:.1f} s",
    )


def _inconclusive(message: str) -> tuple[Verdict, str, str]:
    return Verdict.UNKNOWN, "Inconclusive", message


def _classes(counted: Counter[Outcome], outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{outcome.value}: {counted[outcome]}" for outcome in outcomes if counted[outcome])


def _example(results: Sequence[Result], outcomes: Sequence[Outcome]) -> str:
    details = (result.detail for result in results if result.outcome in outcomes and result.detail)
    return next(details, "no detail")
