from __future__ import annotations

import pytest

from structuredllm_probe.classify import Outcome, Result
from structuredllm_probe.verdict import BurstReport, Verdict, report_of

_PLAIN = {Outcome.PLAIN_OK, Outcome.PLAIN_FAILED}
_NOT_REACHED = {Outcome.CONNECT_ERROR, Outcome.TIMEOUT}


def _report(*outcomes: tuple[Outcome, int], health: bool = True) -> BurstReport:
    results = [
        Result(
            structured=outcome not in _PLAIN,
            outcome=outcome,
            reached=outcome not in _NOT_REACHED,
            timed_out=outcome is Outcome.TIMEOUT,
            detail="why",
        )
        for outcome, count in outcomes
        for _ in range(count)
    ]
    return report_of(results, duration_seconds=1.94, timeout_seconds=5.0, health_answered=health)


@pytest.mark.parametrize(
    ("outcomes", "health", "verdict", "reason"),
    [
        ([(Outcome.VALID, 18), (Outcome.PLAIN_OK, 6)], True, Verdict.HEALTHY, "BurstPassed"),
        ([(Outcome.VALID, 18)], False, Verdict.HEALTHY, "BurstPassed"),
        ([(Outcome.VALID, 17), (Outcome.TRUNCATED, 1)], True, Verdict.HEALTHY, "BurstPassed"),
        ([(Outcome.VALID, 9), (Outcome.TRUNCATED, 9)], True, Verdict.HEALTHY, "BurstPassed"),
        ([(Outcome.VALID, 8), (Outcome.TRUNCATED, 9)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.VALID, 17), (Outcome.GRAMMAR_REJECTED, 1)], True, Verdict.FAULTY, "GrammarRejected"),
        # A reject outweighs all else: it names the cause of the rest.
        ([(Outcome.GRAMMAR_REJECTED, 1), (Outcome.NOT_JSON, 9)], True, Verdict.FAULTY, "GrammarRejected"),
        ([(Outcome.GRAMMAR_REJECTED, 1), (Outcome.TIMEOUT, 9)], True, Verdict.FAULTY, "GrammarRejected"),
        ([(Outcome.VALID, 17), (Outcome.SCHEMA_VIOLATION, 1)], True, Verdict.FAULTY, "SchemaInvalid"),
        ([(Outcome.VALID, 17), (Outcome.NOT_JSON, 1)], True, Verdict.FAULTY, "SchemaInvalid"),
        ([(Outcome.VALID, 17), (Outcome.SURROUNDED, 1)], True, Verdict.FAULTY, "SchemaInvalid"),
        ([(Outcome.VALID, 17), (Outcome.EMPTY, 1)], True, Verdict.FAULTY, "SchemaInvalid"),
        ([(Outcome.VALID, 17), (Outcome.TIMEOUT, 1)], True, Verdict.FAULTY, "ProbeTimeout"),
        ([(Outcome.VALID, 17), (Outcome.TIMEOUT, 1)], False, Verdict.FAULTY, "ProbeTimeout"),
        ([(Outcome.TIMEOUT, 18)], True, Verdict.FAULTY, "ProbeTimeout"),
        ([(Outcome.TIMEOUT, 18)], False, Verdict.UNKNOWN, "EngineUnreachable"),
        ([(Outcome.CONNECT_ERROR, 18)], False, Verdict.UNKNOWN, "EngineUnreachable"),
        ([(Outcome.CONNECT_ERROR, 18)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.HTTP_4XX, 18)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.VALID, 17), (Outcome.HTTP_4XX, 1)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.VALID, 17), (Outcome.HTTP_5XX, 1)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.VALID, 17), (Outcome.STREAM_ERROR, 1)], True, Verdict.UNKNOWN, "Inconclusive"),
        ([(Outcome.VALID, 18), (Outcome.PLAIN_FAILED, 1)], True, Verdict.UNKNOWN, "Inconclusive"),
    ],
)
def test_verdicts(outcomes: list[tuple[Outcome, int]], health: bool, verdict: Verdict, reason: str) -> None:
    report = _report(*outcomes, health=health)
    assert (report.verdict, report.reason) == (verdict, reason)
    assert "\n" not in report.message


def test_a_reject_names_cause_and_both_cures() -> None:
    message = _report((Outcome.VALID, 10), (Outcome.GRAMMAR_REJECTED, 8)).message
    assert message.startswith(
        "8 of 18 structured answers failed because the grammar rejected a sampled token"
    )
    assert "pipeline parallelism with async scheduling" in message
    assert "patches" in message
    assert "--no-async-scheduling" in message


def test_a_pass_says_how_many_and_how_long() -> None:
    report = _report((Outcome.VALID, 18), (Outcome.PLAIN_OK, 6))
    assert report.message == "18 of 18 structured answers valid in 1.9 s"
    assert (report.requests, report.structured) == (24, 18)
    assert report.counts == {"valid": 18, "plain_ok": 6}


def test_examples_and_classes_are_named() -> None:
    message = _report((Outcome.VALID, 3), (Outcome.NOT_JSON, 2), (Outcome.EMPTY, 1)).message
    assert "3 of 6" in message
    assert "not_json: 2, empty: 1; e.g. why" in message
