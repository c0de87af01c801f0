from __future__ import annotations

from typing import Any

import pytest

from structuredllm_probe.classify import Answer, Failure, Outcome, result_of

_SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["age"],
    "additionalProperties": False,
}
_REJECT = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}


def _whole(text: str, finish: str | None = "stop") -> Answer:
    return Answer(status=200, text=text, finish_reason=finish)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_whole('{"age": 3}'), Outcome.VALID),
        (_whole('{"age": 151}'), Outcome.SCHEMA_VIOLATION),
        (_whole('{"age": 1e999}'), Outcome.SCHEMA_VIOLATION),
        (_whole("[]"), Outcome.SCHEMA_VIOLATION),
        (_whole('{"age": NaN}'), Outcome.NOT_JSON),
        (_whole('{"age": 3, "age": 3}'), Outcome.NOT_JSON),
        (_whole('{{"age": 3}'), Outcome.NOT_JSON),
        (_whole('{"age": 3} done'), Outcome.SURROUNDED),
        (_whole('{"age"', "length"), Outcome.TRUNCATED),
        (_whole(" \n"), Outcome.EMPTY),
        (_whole('{"age": 3}', None), Outcome.STREAM_ERROR),
        (_whole("{", "error"), Outcome.GRAMMAR_REJECTED),
        (Answer(status=500, error=_REJECT), Outcome.GRAMMAR_REJECTED),
        (Answer(status=200, text="{", error=_REJECT), Outcome.GRAMMAR_REJECTED),
        (
            Answer(status=500, error={"message": "Failed to advance FSM for request x"}),
            Outcome.GRAMMAR_REJECTED,
        ),
        (Answer(status=502, error={"message": "Grammar rejected tokens"}), Outcome.GRAMMAR_REJECTED),
        (Answer(status=500, error={"message": "x", "type": "grammar_rejected"}), Outcome.GRAMMAR_REJECTED),
        (
            Answer(status=200, text="{", error={"message": "x", "type": "grammar_rejected", "code": "x"}),
            Outcome.GRAMMAR_REJECTED,
        ),
        (Answer(status=400, error={"message": "grammar", "type": "grammar_dead_end"}), Outcome.HTTP_4XX),
        (
            Answer(status=200, error={"message": "grammar", "type": "grammar_compile_timeout"}),
            Outcome.STREAM_ERROR,
        ),
        (
            Answer(status=503, error={"message": "grammar", "type": "grammar_compiler_unavailable"}),
            Outcome.HTTP_5XX,
        ),
        (Answer(status=400, error={"message": "grammar does not compile"}), Outcome.HTTP_4XX),
        (Answer(status=200, error={"message": "grammar too big", "code": 400}), Outcome.STREAM_ERROR),
        (Answer(status=500, error={**_REJECT, "type": "Other"}), Outcome.HTTP_5XX),
        (Answer(status=500, error={"message": "Internal server error"}), Outcome.HTTP_5XX),
        (Answer(status=503, error={"message": "overloaded"}), Outcome.HTTP_5XX),
        (Answer(status=302), Outcome.HTTP_5XX),
        (Answer(status=200, error={"message": "out of memory", "code": 500}), Outcome.STREAM_ERROR),
        (Answer(status=200, text="{", failure=Failure.BROKEN), Outcome.STREAM_ERROR),
        (Answer(failure=Failure.CONNECT), Outcome.CONNECT_ERROR),
        (Answer(), Outcome.CONNECT_ERROR),
        (Answer(status=200, failure=Failure.TIMEOUT), Outcome.TIMEOUT),
    ],
)
def test_structured(answer: Answer, outcome: Outcome) -> None:
    result = result_of(answer, _SCHEMA)
    assert result.outcome is outcome
    assert result.structured
    assert result.reached is (answer.status is not None)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_whole("It rains."), Outcome.PLAIN_OK),
        (_whole("It rai", "length"), Outcome.PLAIN_OK),
        (_whole(""), Outcome.PLAIN_OK),
        (_whole("It", None), Outcome.PLAIN_FAILED),
        (Answer(status=500, error=_REJECT), Outcome.PLAIN_FAILED),
        (Answer(status=200, failure=Failure.BROKEN), Outcome.PLAIN_FAILED),
        (Answer(failure=Failure.CONNECT), Outcome.PLAIN_FAILED),
        (Answer(status=404, error={"message": "no such model"}), Outcome.PLAIN_FAILED),
    ],
)
def test_plain(answer: Answer, outcome: Outcome) -> None:
    result = result_of(answer, None)
    assert result.outcome is outcome
    assert not result.structured


def test_a_late_plain_request_is_known_to_be_late() -> None:
    result = result_of(Answer(failure=Failure.TIMEOUT), None)
    assert (result.outcome, result.timed_out) == (Outcome.PLAIN_FAILED, True)


def test_details_are_bounded_and_printable() -> None:
    error: dict[str, Any] = {"message": "\x1b[31m" + "x" * 1000 + "\n"}
    detail = result_of(Answer(status=500, error=error), _SCHEMA).detail
    assert len(detail) == 200
    assert detail.isprintable()
