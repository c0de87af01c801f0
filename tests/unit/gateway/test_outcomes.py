"""The classes: every one named, the precedence pairwise, the page that is generated from them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from structuredllm_gateway.openai.answers import Choice, ToolCall
from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.upstream.retry import is_retryable
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.judge import judge, judge_choice
from structuredllm_gateway.validation.outcomes import (
    CUT,
    FAULTS,
    MEANINGS,
    PRECEDENCE,
    Outcome,
    first_by_precedence,
    weight_among_choices,
)
from structuredllm_gateway.validation.validators import ValidatorCache

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_EXPECTED = Expectation(ValidatorCache(1).compiled(_SCHEMA))
_GOOD, _SPACES = '{"a": 1}', " " * 200

# For each class that a choice can have: the ways to end, and the texts, that make it one.
_ENDS: dict[Outcome, str | None] = {
    Outcome.GRAMMAR_REJECTED: "error",
    Outcome.FINISH_ABNORMAL: "abort",
    Outcome.TRUNCATED: "length",
}
_TEXTS: dict[Outcome, dict[str, Any]] = {
    Outcome.WHITESPACE_RUNAWAY: {"text": '{"a": ' + _SPACES},
    Outcome.IN_REASONING: {"text": "", "reasoning": f"hm, so {_GOOD}"},
    Outcome.EMPTY: {"text": ""},
    Outcome.NOT_JSON: {"text": '{"a": 1'},
    Outcome.TRAILING_OR_LEADING_TEXT: {"text": _GOOD + " done"},
    Outcome.SCHEMA_VIOLATION: {"text": "{}"},
    Outcome.OK: {"text": _GOOD},
}


def test_every_class_has_one_place_and_one_meaning() -> None:
    assert sorted(PRECEDENCE) == sorted(Outcome)
    assert set(MEANINGS) == set(Outcome)
    asked_for = {
        *("ok", "not_json", "schema_violation", "trailing_or_leading_text", "truncated", "empty"),
        *("in_reasoning", "whitespace_runaway", "grammar_rejected", "finish_abnormal", "stream_error"),
        *("stream_aborted", "stream_empty", "schema_rejected", "upstream_4xx", "upstream_5xx"),
        *("connect_error", "timeout", "overloaded", "client_closed"),
    }
    assert asked_for <= {outcome.value for outcome in Outcome}


@pytest.mark.parametrize(("first", "second"), list(combinations(PRECEDENCE, 2)))
def test_of_two_classes_the_earlier_stands_for_both(first: Outcome, second: Outcome) -> None:
    assert first_by_precedence([second, first]) is first
    assert first_by_precedence([first, second]) is first


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("text", _TEXTS)
def test_a_choice_to_which_two_classes_apply_has_the_earlier_one(end: Outcome, text: Outcome) -> None:
    choice = Choice(0, finish_reason=_ENDS[end], **_TEXTS[text])
    both = [end, text]
    if text is Outcome.WHITESPACE_RUNAWAY and end is not Outcome.TRUNCATED:
        both = [end]  # only an answer that was cut can have run away
    assert judge_choice(choice, _EXPECTED).outcome is first_by_precedence(both)


@pytest.mark.parametrize("text", [text for text in _TEXTS if text is not Outcome.WHITESPACE_RUNAWAY])
def test_a_choice_that_ended_by_itself_has_the_class_of_its_text(text: Outcome) -> None:
    assert judge_choice(Choice(0, finish_reason="stop", **_TEXTS[text]), _EXPECTED).outcome is text


_CHOICES: dict[Outcome, Choice] = {
    **{end: Choice(0, '{"a": 1', reason) for end, reason in _ENDS.items()},
    **{text: Choice(0, finish_reason="stop", **more) for text, more in _TEXTS.items()},
    Outcome.WHITESPACE_RUNAWAY: Choice(0, finish_reason="length", **_TEXTS[Outcome.WHITESPACE_RUNAWAY]),
    Outcome.PLAIN: Choice(0, None, "tool_calls", (ToolCall("f", "{}"),)),
}


@pytest.mark.parametrize(("one", "other"), list(combinations(_CHOICES, 2)))
def test_a_choice_that_passes_never_hides_one_that_is_refused(one: Outcome, other: Outcome) -> None:
    expected = Expectation(_EXPECTED.content, known_tools=frozenset({"f"}))
    for pair in ((one, other), (other, one)):
        found = judge([_CHOICES[outcome] for outcome in pair], expected).outcome
        assert found is min(pair, key=weight_among_choices)
        refused = FAULTS | {Outcome.GRAMMAR_REJECTED}
        if refused & set(pair):
            assert found in refused


@pytest.mark.parametrize("outcome", Outcome)
def test_what_a_class_does_in_enforce(outcome: Outcome) -> None:
    retried = is_retryable(outcome, mode=ValidationMode.ENFORCE, committed=False, upstream_status=None)
    if outcome in CUT:
        assert not retried
    elif outcome in FAULTS or outcome.value.startswith("stream_"):
        assert retried


@pytest.mark.parametrize(
    ("finish", "text", "outcome"),
    [
        ("length", '{"q":' + " " * 900, Outcome.WHITESPACE_RUNAWAY),
        ("length", "\n\t " * 40, Outcome.WHITESPACE_RUNAWAY),
        ("repetition", '{"a": 1}' + "\n" * 300, Outcome.WHITESPACE_RUNAWAY),
        ("length", '{"q":' + " " * 600 + '1, "x', Outcome.WHITESPACE_RUNAWAY),
        ("length", "{\n" + " " * 40 + '"q', Outcome.TRUNCATED),
        ("stop", '{"a":' + " " * 900 + "1}", Outcome.OK),
        ("content_filter", "", Outcome.FINISH_ABNORMAL),
        ("repetition", '{"a": "xxxxxxxxx', Outcome.FINISH_ABNORMAL),
        ("something_new", _GOOD, Outcome.FINISH_ABNORMAL),
        (None, _GOOD, Outcome.FINISH_ABNORMAL),
    ],
)
def test_ends(finish: str | None, text: str, outcome: Outcome) -> None:
    assert judge_choice(Choice(0, text, finish), _EXPECTED).outcome is outcome


@pytest.mark.parametrize(
    ("reasoning", "outcome"),
    [
        (_GOOD, Outcome.IN_REASONING),
        ("[1, 2]", Outcome.IN_REASONING),
        (f"Let me think {{ about }} it.\n{_GOOD}\n", Outcome.IN_REASONING),
        ("{ " * 50 + _GOOD, Outcome.IN_REASONING),
        ("I have thought about 17 things.", Outcome.EMPTY),
        ("17", Outcome.EMPTY),
        ("", Outcome.EMPTY),
    ],
)
def test_json_in_the_reasoning_is_named_when_the_text_is_empty(reasoning: str, outcome: Outcome) -> None:
    for text in (None, "", " \n"):
        choice = Choice(0, text, "stop", reasoning=reasoning)
        assert judge_choice(choice, _EXPECTED).outcome is outcome
    assert judge_choice(Choice(0, _GOOD, "stop", reasoning=reasoning), _EXPECTED).outcome is Outcome.OK
