"""Admission: each rule refuses at its bound and not below, with its code and the pointer into the body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from structuredllm_gateway.admission.admission import Admission, judge_unenforced
from structuredllm_gateway.admission.keywords import is_trusting
from structuredllm_gateway.admission.patterns import CAP, measure
from structuredllm_gateway.admission.rules import RULES, Limits
from structuredllm_gateway.errors import RequestError, SchemaRejectedError
from structuredllm_gateway.settings import AdmissionSettings
from structuredllm_gateway.upstream.endpoints import GrammarBackend
from tests.unit.gateway.support import plain, structured

_SCHEMA = "/response_format/json_schema/schema"


def limits_with(**changes: Any) -> Limits:
    return AdmissionSettings(**changes).limits


def refusal(body: dict[str, Any], **changes: Any) -> RequestError | None:
    """Return what admission says to a body, None when it may pass."""
    try:
        Admission(limits_with(**changes), 8).check(json.dumps(body).encode(), body)
    except RequestError as error:
        return error
    return None


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of 3 * levels subschemas that stands for 2 ** levels."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        reference = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"properties": {"a": reference, "b": dict(reference)}}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def nested_arrays(levels: int, each: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "maxItems": each, "items": schema}
    return schema


_TREE = {
    "$defs": {"node": {"properties": {"l": {"$ref": "#/$defs/node"}, "r": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}

# Rule, setting to lower (None = the default), body at the bound, body above it, pointer.
_CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ("request_too_deep", {"max_body_depth": 3}, plain(x=[[1]]), plain(x=[[[1]]]), "/x/0/0"),
    ("request_too_many_values", {"max_body_nodes": 60}, plain(x=[0] * 17), plain(x=[0] * 18), ""),
    ("too_many_choices", {}, plain(n=128), plain(n=129), "/n"),
    ("too_many_choices", {}, plain(best_of=128), plain(best_of=1e30), "/best_of"),
    ("too_many_tools", {"max_tools": 1}, plain(tools=[{}]), plain(tools=[{}, {}]), "/tools"),
    ("field_refused", {}, plain(chat_template=None), plain(chat_template="{{x}}"), "/chat_template"),
    (
        "field_refused",
        {},
        plain(chat_template_kwargs={"enable_thinking": False}),
        plain(chat_template_kwargs={"tokenize": True}),
        "/chat_template_kwargs/tokenize",
    ),
    (
        "schema_too_deep",
        {"max_schema_depth": 2},
        structured({"properties": {"a": True}}),
        structured({"properties": {"a": {"not": True}}}),
        f"{_SCHEMA}/properties/a",
    ),
    (
        "schema_too_large",
        {"max_schema_nodes": 5},
        structured({"enum": [1, 2, 3]}),
        structured({"enum": [1, 2, 3, 4]}),
        _SCHEMA,
    ),
    (
        "schema_too_many_properties",
        {"max_properties": 3},
        structured({"properties": {"a": {"properties": {"b": {}}}, "c": True}}),
        structured({"properties": {"a": {"patternProperties": {"b": {}, "d": {}}}, "c": True}}),
        f"{_SCHEMA}/properties/a/patternProperties",
    ),
    (
        "schema_too_many_enum_values",
        {"max_enum_values": 3},
        structured({"anyOf": [{"enum": [1, 2]}, {"enum": [3]}]}),
        structured({"properties": {"enum": {"enum": [1, 2, 3, 4]}}}),
        f"{_SCHEMA}/properties/enum/enum",
    ),
    (
        "schema_enum_too_long",
        {"max_enum_chars": 4},
        structured({"enum": ["ab", "cd"]}),
        structured({"const": "abcde"}),
        f"{_SCHEMA}/const",
    ),
    (
        "schema_strings_too_long",
        {"max_string_chars": 4},
        structured({"properties": {"ab": {"const": "cd"}}}),
        structured({"$defs": {"abcde": {}}}),
        f"{_SCHEMA}/$defs",
    ),
    (
        "schema_too_many_branches",
        {"max_branches": 3},
        structured({"anyOf": [{}, {"oneOf": [{}]}]}),
        structured({"anyOf": [{}, {"allOf": [{}, {}]}]}),
        f"{_SCHEMA}/anyOf/1/allOf",
    ),
    (
        "schema_expands_too_far",
        {},
        structured(doubling(14)),
        structured(doubling(40)),
        f"{_SCHEMA}/$defs/d25",
    ),
    (
        "schema_repeats_too_often",
        {},
        structured(nested_arrays(2, 3000)),
        structured(nested_arrays(3, 3000)),
        _SCHEMA,
    ),
    (
        "schema_repeats_too_often",
        {},
        structured({"items": {"maxLength": 1000}, "minItems": 10_000}),
        structured({"items": {"minLength": 1001}, "maxItems": 10_000.0}),
        _SCHEMA,
    ),
    (
        "pattern_too_long",
        {"max_pattern_chars": 3},
        structured({"pattern": "abc"}),
        structured({"patternProperties": {"abcd": {}}}),
        f"{_SCHEMA}/patternProperties",
    ),
    (
        "pattern_too_deep",
        {"max_pattern_depth": 2},
        structured({"pattern": "((a)(b))[(((]"}),
        structured({"pattern": "(((a)))"}),
        f"{_SCHEMA}/pattern",
    ),
    (
        "pattern_expands_too_far",
        {},
        structured({"pattern": "^(a{10}b{1,90}){100}$"}),
        structured({"pattern": "^((a{10}){10}b{1,1}){100}$"}),
        f"{_SCHEMA}/pattern",
    ),
    (
        "patterns_expand_too_far",
        {"max_patterns_expansion": 10},
        structured({"pattern": "a{5}", "items": {"pattern": "b{5}"}}),
        structured({"pattern": "a{5}", "patternProperties": {"b{6}": {}}}),
        f"{_SCHEMA}/patternProperties",
    ),
    (
        "regex_too_long",
        {"max_regex_chars": 3},
        plain(structured_outputs={"regex": "abc"}),
        plain(structured_outputs={"regex": "abcd"}),
        "/structured_outputs/regex",
    ),
    (
        "pattern_expands_too_far",
        {},
        plain(guided_regex="(a{100}){100}"),
        plain(guided_regex="(a{100}){101}"),
        "/guided_regex",
    ),
    (
        "grammar_too_long",
        {"max_grammar_chars": 9},
        plain(guided_grammar="root ::= a"[:9]),
        plain(structured_outputs={"grammar": "root ::= a"}),
        "/structured_outputs/grammar",
    ),
    (
        "grammar_too_deep",
        {"max_grammar_depth": 2},
        plain(structured_outputs={"grammar": 'root ::= (("(((" [(((]))'}),
        plain(structured_outputs={"grammar": 'root ::= ((("a")))'}),
        "/structured_outputs/grammar",
    ),
    (
        "schema_too_many_enum_values",
        {"max_enum_values": 2},
        plain(structured_outputs={"choice": ["a", "b"]}),
        plain(structured_outputs={"choice": ["a", "b", "c"]}),
        "/structured_outputs/choice",
    ),
    (
        "schema_enum_too_long",
        {"max_enum_chars": 2},
        plain(structured_outputs={"choice": ["a", "b"]}),
        plain(structured_outputs={"choice": ["a", "bb"]}),
        "/structured_outputs/choice",
    ),
]


@pytest.mark.parametrize(("code", "changes", "below", "above", "pointer"), _CASES)
def test_rule_refuses_above_its_bound_and_not_at_it(
    code: str, changes: dict[str, Any], below: dict[str, Any], above: dict[str, Any], pointer: str
) -> None:
    assert refusal(below, **changes) is None
    error = refusal(above, **changes)
    assert error is not None
    assert (error.status, error.code, error.param) == (400, code, pointer)
    rule = next(rule for rule in RULES if rule.code == code)
    assert isinstance(error, SchemaRejectedError) is rule.about_schema
    assert code == "field_refused" or f"admission.{rule.setting}" in error.message


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in _CASES} == {rule.code for rule in RULES}


@pytest.mark.parametrize(
    "place",
    [
        lambda schema: plain(structured_outputs={"json": schema}),
        lambda schema: plain(structured_outputs={"json": json.dumps(schema)}),
        lambda schema: plain(guided_json=schema),
        lambda schema: plain(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]),
        lambda schema: plain(tools=[{"type": "function", "name": "f", "parameters": schema}]),
        lambda schema: plain(functions=[{"name": "f", "parameters": schema}]),
        lambda schema: plain(text={"format": {"type": "json_schema", "schema": schema}}),
        lambda schema: plain(
            structured_outputs={"structural_tag": json.dumps({"structures": [{"schema": schema}]})}
        ),
        lambda schema: plain(
            response_format={"type": "structural_tag", "format": {"content": {"json_schema": schema}}}
        ),
    ],
)
def test_a_schema_is_found_wherever_it_is_asked_for(place: Any) -> None:
    error = refusal(place(nested_arrays(3, 3000)))
    assert error is not None
    assert error.code == "schema_repeats_too_often"
    assert refusal(place(nested_arrays(2, 3000))) is None


def test_recursion_is_allowed_and_counts_once() -> None:
    assert refusal(structured(_TREE)) is None
    assert refusal(structured({"items": {"$ref": "#"}, "maxItems": 3000})) is None


@pytest.mark.parametrize("holder", ["examples", "x-own"])
def test_a_reference_into_data_is_followed(holder: str) -> None:
    bomb = {holder: [nested_arrays(3, 3000)], "$ref": f"#/{holder}/0"}
    error = refusal(structured(bomb))
    assert error is not None
    assert error.code == "schema_repeats_too_often"


def test_anchors_and_ids_are_followed() -> None:
    deep = doubling(40)
    for level in range(40):
        deep["$defs"][f"d{level}"]["$anchor"] = f"d{level}"
        for name in ("a", "b"):
            deep["$defs"][f"d{level}"]["properties"][name] = {"$ref": f"#/%24defs/d{level + 1}"}
    deep["$ref"] = "#d0"
    error = refusal(structured(deep))
    assert error is not None
    assert error.code == "schema_expands_too_far"


def test_what_passed_is_remembered_and_refusals_are_not() -> None:
    admission = Admission(limits_with(), 2)
    for number in range(5):
        body = structured({"const": number})
        admission.check(b"", body)
    assert len(admission._passed) == 2
    bad = structured(doubling(40))
    for _ in range(2):
        with pytest.raises(SchemaRejectedError):
            admission.check(b"", bad)


@pytest.mark.parametrize(
    ("text", "depth", "expansion"),
    [
        ("", 0, 0),
        ("abc", 0, 3),
        (r"\(\{3}", 0, 4),
        ("(a|b)*", 1, 2),
        ("a{3}", 0, 3),
        ("a{2,}", 0, 2),
        ("(ab){,4}", 1, 8),
        ("a{3}{4}", 0, 12),
        ("a{", 0, 2),
        ("[(){}]{5}", 0, 5),
        ("a{999999999999999999999}", 0, CAP),
        (")))(((", 3, 0),
    ],
)
def test_size_of_patterns(text: str, depth: int, expansion: int) -> None:
    facts = measure(text)
    assert (facts.depth, facts.expansion) == (depth, expansion)


@pytest.mark.parametrize(
    ("schema", "keywords"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, {"not"}),
        ({"if": {}, "then": {}}, {"if"}),
        ({"dependentRequired": {"a": ["b"]}}, {"dependentRequired"}),
        ({"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {}}}, {"$ref"}),
        ({"$ref": "#/$defs/a", "title": "x", "$defs": {"a": {}}}, set()),
        ({"anyOf": [{}], "required": ["a"]}, {"anyOf"}),
        ({"anyOf": [{}], "description": "x"}, set()),
        ({"uniqueItems": True}, {"uniqueItems"}),
        ({"uniqueItems": False}, set()),
        ({"type": ["array", "null"], "uniqueItems": True}, set()),
        ({"pattern": "a", "maxLength": 3}, {"maxLength"}),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, {"required"}),
        ({"properties": {"not": {"type": "string"}}}, set()),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, set()),
    ],
)
def test_keywords_that_xgrammar_lets_pass(schema: dict[str, Any], keywords: set[str]) -> None:
    found = Admission(limits_with(), 8).check(b"", structured(schema))
    assert {item.keyword for item in found} == keywords


def test_policy_on_unenforced_keywords() -> None:
    admission = Admission(limits_with(), 8)
    body = structured({"properties": {"a": {"not": {}}, "b": {"if": True, "then": {}}}})
    found = admission.check(b"", body)
    assert found == admission.check(b"", body)  # remembered
    (warning,) = judge_unenforced(found, "warn")
    assert "if, not" in warning
    assert judge_unenforced(found, "validate") == ()
    assert judge_unenforced((), "reject") == ()
    with pytest.raises(SchemaRejectedError) as caught:
        judge_unenforced(found, "reject")
    assert caught.value.code == "keyword_not_enforced"
    assert caught.value.param in {f"{_SCHEMA}/properties/a", f"{_SCHEMA}/properties/b"}


def test_which_backends_let_keywords_pass() -> None:
    guidance, auto = GrammarBackend.GUIDANCE, GrammarBackend.AUTO
    assert [is_trusting(frozenset({b})) for b in GrammarBackend] == [True, True, False]
    assert is_trusting(frozenset({guidance, auto}))
