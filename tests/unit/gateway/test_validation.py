"""Judging answers: strict JSON, schemas, the precedence of classes, the cache of validators."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.openai.answers import Choice, MalformedAnswerError, StreamAssembler, choices_of
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.judge import judge, judge_choice
from structuredllm_gateway.validation.outcomes import Outcome
from structuredllm_gateway.validation.strict_json import ParsedText, TextFault, parse_strict
from structuredllm_gateway.validation.validators import SchemaCompileError, ValidatorCache

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_EXPECTED = Expectation(ValidatorCache(1).compiled(_SCHEMA))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", Outcome.EMPTY),
        (" \n\t ", Outcome.EMPTY),
        ('{"a": NaN}', Outcome.NOT_JSON),
        ('{"a": -Infinity}', Outcome.NOT_JSON),
        ('{"a": 1, "a": 2}', Outcome.NOT_JSON),
        ('{"a": {"b": 1, "b": 1}}', Outcome.NOT_JSON),
        ('{"a": "line\nbreak"}', Outcome.NOT_JSON),
        ('{"a": "tab\t"}', Outcome.NOT_JSON),
        ('{"a": "\\ud800"}', Outcome.NOT_JSON),
        ('{"\\udfff": 1}', Outcome.NOT_JSON),
        ('{"a": "\ud800"}', Outcome.NOT_JSON),
        ('{{"a": 1}', Outcome.NOT_JSON),
        ('{"a": {"b": 1}', Outcome.NOT_JSON),
        ("{'a': 1}", Outcome.NOT_JSON),
        ('{"a": 01}', Outcome.NOT_JSON),
        ('{"a": 1,}', Outcome.NOT_JSON),
        ("nullable", Outcome.NOT_JSON),
        ("no value here", Outcome.NOT_JSON),
        ("[" * 100_000 + "]" * 100_000, Outcome.NOT_JSON),
        ("x" + "[" * 100_000, Outcome.NOT_JSON),
        ('{"a": 1} Hope this helps!', Outcome.TRAILING_OR_LEADING_TEXT),
        ('{"a": 1}{"a": 1}', Outcome.TRAILING_OR_LEADING_TEXT),
        ('Sure: {"a": 1}', Outcome.TRAILING_OR_LEADING_TEXT),
        ('```json\n{"a": 1}\n```', Outcome.TRAILING_OR_LEADING_TEXT),
        ('see [above]: {"a": 1}', Outcome.TRAILING_OR_LEADING_TEXT),
        ('\ufeff{"a": 1}', Outcome.TRAILING_OR_LEADING_TEXT),
    ],
)
def test_text_that_is_not_one_json_value(text: str, outcome: Outcome) -> None:
    parsed = parse_strict(text)
    assert isinstance(parsed, TextFault)
    assert parsed.outcome is outcome
    assert parsed.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('\n {"a": 1}\r\n', {"a": 1}),
        ("null", None),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("1e400", Decimal("1e400")),
        ("9" * 5000, Decimal("9" * 5000)),
        ("-0.5", -0.5),
    ],
)
def test_text_that_is(text: str, value: Any) -> None:
    assert parse_strict(text) == ParsedText(value)


@settings(deadline=None, max_examples=60)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    st.booleans(),
)
def test_whatever_json_writes_is_read_back(value: Any, ascii_only: bool) -> None:
    assert parse_strict(json.dumps(value, ensure_ascii=ascii_only)) == ParsedText(value)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200))
def test_any_text_gets_a_verdict(text: str) -> None:
    parse_strict(text)


def _choice(text: str | None, finish: str | None = "stop", **more: Any) -> Choice:
    return Choice(0, text, finish, **more)


@pytest.mark.parametrize(
    ("choice", "outcome"),
    [
        (_choice('{"a": 1}'), Outcome.OK),
        (_choice('{"a": "x"}'), Outcome.SCHEMA_VIOLATION),
        (_choice("{}"), Outcome.SCHEMA_VIOLATION),
        (_choice('{"a": 1'), Outcome.NOT_JSON),
        (_choice('{"a": 1', "length"), Outcome.TRUNCATED),
        (_choice("", "length"), Outcome.TRUNCATED),
        (_choice('{"a": 1}', "length"), Outcome.TRUNCATED),
        (_choice('{"a": 1}', "error"), Outcome.GRAMMAR_REJECTED),
        (_choice(None), Outcome.EMPTY),
        (_choice("  "), Outcome.EMPTY),
    ],
)
def test_one_choice(choice: Choice, outcome: Outcome) -> None:
    assert judge_choice(choice, _EXPECTED).outcome is outcome


def test_the_worst_choice_stands_for_the_answer() -> None:
    choices = [Choice(0, '{"a": 1}', "stop"), Choice(1, '{"a": "x"}', "stop"), Choice(2, "{", "stop")]
    verdict = judge(choices, _EXPECTED)
    assert (verdict.outcome, verdict.choice) == (Outcome.NOT_JSON, 2)
    assert judge(choices[:2], _EXPECTED).pointer == "/a"
    assert judge([], _EXPECTED).outcome is Outcome.EMPTY


def test_what_cannot_be_validated_is_never_ok() -> None:
    assert judge([Choice(0, "yes", "stop")], Expectation(unvalidated="grammar")).outcome is Outcome.PLAIN
    assert judge([Choice(0, "", "stop")], Expectation(unvalidated="grammar")).outcome is Outcome.EMPTY


def test_cache_is_bounded_and_keyed_by_meaning() -> None:
    cache = ValidatorCache(2)
    first = cache.compiled({"type": "object", "title": "x"})
    assert cache.compiled({"title": "x", "type": "object"}) is first
    cache.compiled({"type": "array"})
    cache.compiled({"type": "object", "title": "x"})
    cache.compiled({"type": "string"})
    assert len(cache) == 2
    assert cache.compiled({"type": "object", "title": "x"}) is first
    assert cache.compiled(False).violation(1) is not None
    assert cache.compiled(True).violation(1) is None


def test_cache_is_bounded_by_the_length_of_its_schemas() -> None:
    cache = ValidatorCache(100, max_bytes=1000)
    for index in range(20):
        cache.compiled({"title": f"{index:0200}"})
        assert len(cache) <= 4
    assert len(cache) == 4
    big = {"title": "x" * 5000}
    assert cache.compiled(big) is cache.compiled(big)  # one alone is kept, whatever its length
    assert len(cache) == 1
    cache.compiled({"title": "y"})
    assert len(cache) == 1


def test_formats_are_checked_only_when_asked_for() -> None:
    schema = {"type": "string", "format": "date"}
    assert ValidatorCache(1).compiled(schema).violation("no date") is None
    checked = ValidatorCache(1, assert_formats=True).compiled(schema)
    assert checked.violation("2026-02-28") is None
    violation = checked.violation("2026-02-31")
    assert violation is not None
    assert violation.keyword == "format"


def test_violation_message_holds_no_part_of_the_answer() -> None:
    violation = ValidatorCache(1).compiled(_SCHEMA).violation({"a": "a secret"})
    assert violation is not None
    assert (violation.pointer, violation.keyword) == ("/a", "type")
    assert "secret" not in violation.message


def test_old_schema_dialects_are_read_as_2020_12() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_SCHEMA}
    assert ValidatorCache(1).compiled(schema).violation({"a": 1}) is None


def test_local_references_and_recursion_work() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    compiled = ValidatorCache(1).compiled({"$defs": {"n": node}, "$ref": "#/$defs/n"})
    assert compiled.violation({"next": {"next": {}}}) is None
    violation = compiled.violation({"next": {"next": {"x": 1}}})
    assert violation is not None
    assert violation.pointer == "/next/next"


@pytest.mark.parametrize("schema", [{"$ref": "#/nowhere"}, {"$ref": "https://example.com/s"}, {"type": 1}])
def test_schema_that_cannot_be_compiled(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaCompileError):
        ValidatorCache(1).compiled(schema)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": 1}', b'{"choices": [1]}', b'{"choices": [{"text": 5}]}']
)
def test_malformed_answers_are_errors(body: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        choices_of(body)


def test_assembler_keeps_choices_apart_and_is_bounded() -> None:
    assembler = StreamAssembler(max_chars=4, max_choices=2)
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    assert assembler.feed(role) is False
    parts = [
        {"index": i, "delta": {"content": t}, "finish_reason": f}
        for i, t, f in [(0, "a", None), (1, "b", "stop")]
    ]
    assert assembler.feed({"choices": parts}) is True
    before = assembler.is_finished
    assert assembler.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) is False
    assert (before, assembler.is_finished) == (False, True)
    assert [c.text for c in assembler.choices()] == ["a", "b"]
    with pytest.raises(MalformedAnswerError, match="longer than 4"):
        assembler.feed({"choices": [{"index": 0, "delta": {"content": "xxxx"}}]})
    with pytest.raises(MalformedAnswerError, match="more than 2 choices"):
        assembler.feed({"choices": [{"index": 2, "delta": {"content": "x"}}]})


@pytest.mark.parametrize(
    "delta", [{"reasoning": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}]
)
def test_reasoning_and_tool_calls_are_parts_of_an_answer(delta: dict[str, Any]) -> None:
    assert StreamAssembler(10).feed({"choices": [{"index": 0, "delta": delta}]}) is True
