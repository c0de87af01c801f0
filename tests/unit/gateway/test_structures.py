"""What a request may ask for, way by way: how it is read, and how answers are judged by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.admission.expectations import expect
from structuredllm_gateway.errors import RequestError, SchemaRejectedError
from structuredllm_gateway.openai.answers import Choice, ToolCall
from structuredllm_gateway.openai.requests import CompletionRequest, parse_completion_request
from structuredllm_gateway.openai.structures import full_match
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.judge import judge, judge_choice
from structuredllm_gateway.validation.outcomes import Outcome
from structuredllm_gateway.validation.validators import SchemaCompileError, ValidatorCache

_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def _parsed(route: Route = Route.CHAT, **fields: Any) -> CompletionRequest:
    return parse_completion_request(json.dumps({"model": "m", **fields}).encode(), route)


def _expected(route: Route = Route.CHAT, **fields: Any) -> Expectation | None:
    cache = ValidatorCache(8)

    def admit(asked: Any) -> Any:
        try:
            return None if asked.schema is None else cache.compiled(asked.schema)
        except SchemaCompileError as error:
            raise SchemaRejectedError(error.message, param=asked.pointer) from error

    return expect(_parsed(route, **fields), admit)


def _outcome(text: str, finish: str = "stop", **outputs: Any) -> Outcome:
    expected = _expected(structured_outputs=outputs)
    assert expected is not None
    return judge_choice(Choice(0, text, finish), expected).outcome


@pytest.mark.parametrize(
    ("regex", "right", "wrong"),
    [
        (r"\d{3}-\d{4}", ["555-1234"], ["555-12345", "x555-1234", "555-1234\n", "\u0665\u0665\u0665-1234"]),
        ("yes|no", ["yes", "no"], ["yesno", "nope", " yes"]),
        ("^(a|b)$", ["a"], ["ab", "a\n"]),
        ("a.c", ["abc", "a\nc"], ["ac", "abcd"]),
        (r"a\.c", ["a.c"], ["abc"]),
        (r"[.\]]+", [".]."], ["ab"]),
        ("x*", ["", "xx"], ["y"]),
        (r"(?i:hello)", ["HELLO"], ["hell"]),
        (r"a+?b{2,}?c{0,2}", ["abbc"], ["a"]),
        (r"[*+?]{2}\*+", ["+?**"], ["a"]),
    ],
)
def test_regex_must_match_the_whole_text(regex: str, right: list[str], wrong: list[str]) -> None:
    assert [_outcome(text, regex=regex) for text in right] == [Outcome.OK] * len(right)
    found = [_outcome(text, regex=regex) for text in wrong]
    assert all(one in (Outcome.SCHEMA_VIOLATION, Outcome.EMPTY) for one in found)


def test_text_structures_are_judged_by_the_same_order() -> None:
    assert _outcome("55", "length", regex=r"\d{3}") is Outcome.TRUNCATED
    assert _outcome("", regex=r"\d{3}") is Outcome.EMPTY
    expected = _expected(structured_outputs={"choice": ["a", "b"]})
    assert expected is not None
    assert judge_choice(Choice(0, "", "stop", reasoning="b\n"), expected).outcome is Outcome.IN_REASONING


@pytest.mark.parametrize(
    "regex", ["(a", "(?=a)a", r"(a)\1", "(a{1000}){1000}", "[z-a]", "foo**", "a{2}{3}", "a*+"]
)
def test_regex_that_needs_more_than_linear_time_or_is_none_is_refused(regex: str) -> None:
    with pytest.raises(SchemaRejectedError) as caught:
        _expected(structured_outputs={"regex": regex})
    assert (caught.value.param, caught.value.code) == ("/structured_outputs/regex", "invalid_regex")


def test_a_regex_that_backtracks_for_ever_elsewhere_is_judged_at_once() -> None:
    # With a backtracking engine this does not end.
    assert _outcome("a" * 50_000 + "c", regex="(a+)+b") is Outcome.SCHEMA_VIOLATION


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*"ab.[]^\\", r"\.", r"\]"]), max_size=8).map("".join))
def test_making_an_expression_match_in_full_never_makes_it_wrong(regex: str) -> None:
    cache = ValidatorCache(2)
    try:
        cache.compiled({"pattern": f"^(?:{regex})$"})
        full = full_match(regex)
    except ValueError:
        return
    cache.compiled({"pattern": full})


def test_choice_is_one_of_the_list_exactly() -> None:
    assert _outcome("red", choice=["red", "green"]) is Outcome.OK
    assert _outcome("Red", choice=["red", "green"]) is Outcome.SCHEMA_VIOLATION
    assert _outcome("red.", choice=["red", "green"]) is Outcome.SCHEMA_VIOLATION
    for bad in ([], "red", [1], {"a": 1}):
        with pytest.raises(SchemaRejectedError):
            _expected(structured_outputs={"choice": bad})


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "structural_tag"),
        ({"response_format": {"type": "json_object"}, "echo": True}, "echo"),
    ],
)
def test_what_cannot_be_validated_is_plain_and_says_why(fields: dict[str, Any], kind: str) -> None:
    expected = _expected(**fields)
    assert expected is not None
    assert expected.unvalidated == kind
    assert judge_choice(Choice(0, "anything", "stop"), expected).outcome is Outcome.PLAIN
    assert judge_choice(Choice(0, "", "stop"), expected).outcome is Outcome.EMPTY
    assert judge_choice(Choice(0, "any", "length"), expected).outcome is Outcome.TRUNCATED


def test_fewer_choices_than_asked_for_is_never_ok() -> None:
    expected = _expected(response_format={"type": "json_object"}, n=3)
    assert expected is not None
    choices = [Choice(index, "{}", "stop") for index in range(3)]
    assert judge(choices, expected).outcome is Outcome.OK
    assert judge(choices[:2], expected).outcome is Outcome.EMPTY
    batch = _expected(Route.COMPLETIONS, response_format={"type": "json_object"}, n=2, prompt=["a", "b"])
    assert batch is not None
    assert batch.choices == 4


# --- legacy fields ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "outputs"),
    [
        ({"guided_json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"guided_json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"guided_json_object": True}, {"json_object": True}),
        ({"structural_tag": "{}"}, {"structural_tag": "{}"}),
        (
            {"guided_json": {}, "guided_whitespace_pattern": " ?", "guided_decoding_backend": "outlines"},
            {"json": {}, "whitespace_pattern": " ?"},
        ),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, {"regex": "a"}),
    ],
)
def test_legacy_fields_are_sent_on_in_the_words_of_today(
    fields: dict[str, Any], outputs: dict[str, Any]
) -> None:
    found = _parsed(seed=12345678901234567890123, **fields)
    assert found.rewritten is not None
    sent = json.loads(found.rewritten)
    # Whatever else the body has is what it was, to the last digit.
    assert sent == {"model": "m", "seed": 12345678901234567890123, "structured_outputs": outputs}
    legacy = [name for name in fields if name != "structured_outputs"]
    assert sorted(warning.split()[0] for warning in found.warnings) == sorted(legacy)
    assert found.is_structured


def test_any_object_of_the_responses_api_is_sent_on_as_a_schema_which_engines_enforce() -> None:
    asked = {"format": {"type": "json_object"}, "verbosity": "low"}
    found = _parsed(Route.RESPONSES, text=asked)
    assert found.rewritten is not None
    sent = json.loads(found.rewritten)["text"]
    assert sent["verbosity"] == "low"
    assert (sent["format"]["type"], sent["format"]["schema"]) == ("json_schema", {"type": "object"})
    assert len(found.warnings) == 1
    assert found.structure is not None
    assert found.structure.schema == {"type": "object"}
    assert _parsed(text=asked).rewritten is None  # nothing of chat


def test_a_backend_alone_is_dropped_with_a_warning() -> None:
    found = _parsed(guided_decoding_backend="outlines")
    assert found.rewritten is not None
    assert json.loads(found.rewritten) == {"model": "m"}
    assert len(found.warnings) == 1


def test_a_body_without_legacy_fields_is_not_rewritten() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"guided_json": None, "guided_json_object": False},
        {"structured_outputs": {"json": {}}},
    ]
    for fields in bodies:
        found = _parsed(**fields)
        assert (found.rewritten, found.warnings) == (None, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {}, "structured_outputs": {"json": {"a": 1}}}, "/guided_json"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "/structured_outputs/regex"),
        ({"guided_json": {}, "guided_regex": "a"}, "/guided_regex"),
        ({"guided_choice": ["a"], "response_format": {"type": "json_object"}}, "/guided_choice"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "/structured_outputs/choice"),
        (
            {"structured_outputs": {"grammar": "a", "structural_tag": "b"}},
            "/structured_outputs/structural_tag",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "/structured_outputs/regex",
        ),
    ],
)
def test_two_ways_at_once_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _parsed(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_what_would_make_every_answer_wrong_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        _parsed(response_format={"type": "json_object"}, ignore_eos=True)
    assert caught.value.param == "ignore_eos"
    assert not _parsed(ignore_eos=True).is_structured
    with pytest.raises(RequestError) as caught:
        _parsed(Route.RESPONSES, background=True)
    assert caught.value.param == "background"


# --- tools --------------------------------------------------------------------------------------------------


def _tool(name: str = "weather", nested: bool = True, **more: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": _PARAMETERS, **more}
    return {"type": "function", "function": function} if nested else {"type": "function", **function}


def _called(expected: Expectation | None, *calls: tuple[str, str], text: str | None = None) -> Outcome:
    assert expected is not None
    made = tuple(ToolCall(name, arguments) for name, arguments in calls)
    finish = "tool_calls" if made else "stop"
    return judge_choice(Choice(0, text, finish, made), expected).outcome


_RIGHT = '{"city": "Bern"}'


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        (_RIGHT, Outcome.OK),
        ("{}", Outcome.SCHEMA_VIOLATION),
        ('{"city": 5}', Outcome.SCHEMA_VIOLATION),
        ('{"city": "Bern"', Outcome.NOT_JSON),
        ('city": "Bern"}', Outcome.NOT_JSON),
        (_RIGHT + _RIGHT, Outcome.TRAILING_OR_LEADING_TEXT),
        ('{"city": "a", "city": "b"}', Outcome.NOT_JSON),
        ("", Outcome.EMPTY),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [_tool()], "tool_choice": "required"},
        {"tools": [_tool()], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [_tool(strict=True)]},
        {"tools": [_tool(strict=True), _tool("other")], "tool_choice": "auto"},
        {
            "tools": [_tool()],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        },
    ],
)
def test_arguments_are_judged_by_the_functions_schema(
    fields: dict[str, Any], arguments: str, outcome: Outcome
) -> None:
    assert _called(_expected(**fields), ("weather", arguments)) is outcome


def test_every_call_is_judged_and_the_worst_stands() -> None:
    expected = _expected(tools=[_tool(), _tool("news")], tool_choice="required")
    assert _called(expected, ("weather", _RIGHT), ("news", _RIGHT)) is Outcome.OK
    assert _called(expected, ("weather", _RIGHT), ("news", "{}")) is Outcome.SCHEMA_VIOLATION
    assert _called(expected, ("weather", _RIGHT), ("unknown", _RIGHT)) is Outcome.SCHEMA_VIOLATION


def test_a_required_call_that_is_missing_is_named() -> None:
    expected = _expected(tools=[_tool()], tool_choice="required")
    assert _called(expected, text="It is sunny.") is Outcome.SCHEMA_VIOLATION
    assert _called(expected) is Outcome.EMPTY
    named = {"type": "function", "function": {"name": "weather"}}
    only = _expected(tools=[_tool(), _tool("news")], tool_choice=named)
    assert _called(only, ("news", _RIGHT)) is Outcome.SCHEMA_VIOLATION


def test_with_a_structure_the_text_is_judged_only_when_no_function_is_called() -> None:
    expected = _expected(tools=[_tool()], response_format={"type": "json_object"})
    assert _called(expected, ("weather", "whatever")) is Outcome.PLAIN
    assert _called(expected, text="{}") is Outcome.OK
    assert _called(expected, text="no") is Outcome.NOT_JSON
    without = _expected(response_format={"type": "json_object"})
    assert _called(without, ("weather", "{}")) is Outcome.EMPTY


def test_calls_that_nobody_asked_to_be_right_are_not_judged() -> None:
    assert _expected(tools=[_tool()]) is None
    assert _expected(tools=[_tool(strict=True)], tool_choice="none") is None
    assert _called(_expected(tools=[_tool(strict=True)]), text="Hello.") is Outcome.PLAIN


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": ["x"]}, "/tools/0"),
        ({"tools": [{"type": "function"}]}, "/tools/0"),
        ({"tools": [_tool()], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [_tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": [_tool()], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice",
        ),
        ({"tools": [_tool(strict=True, parameters=5)]}, "/tools/0/function/parameters"),
    ],
)
def test_tools_of_a_wrong_kind_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _parsed(**fields)
    assert caught.value.param == param


def test_tools_of_the_responses_api_are_flat_and_may_be_no_functions() -> None:
    tools = [{"type": "web_search"}, _tool(nested=False, strict=True)]
    expected = _expected(Route.RESPONSES, tools=tools)
    assert _called(expected, ("weather", "{}")) is Outcome.SCHEMA_VIOLATION
    named = _expected(
        Route.RESPONSES,
        tools=[_tool(nested=False)],
        tool_choice={"type": "function", "name": "weather"},
    )
    assert _called(named, ("weather", _RIGHT)) is Outcome.OK
    assert named is not None
    assert named.requires_call
