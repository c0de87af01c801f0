"""Fuzz: the request parser, admission and the SSE parser meet anything without a crash and without growing.

Whatever comes in, only refusals come out (`GatewayError`), and the work and memory are bounded by the input.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.admission.admission import Admission
from structuredllm_gateway.admission.body_shape import walk
from structuredllm_gateway.admission.expansion import check_expansion
from structuredllm_gateway.admission.patterns import CAP, measure
from structuredllm_gateway.admission.schema_policy import admit
from structuredllm_gateway.admission.schema_survey import survey
from structuredllm_gateway.errors import GatewayError, RequestError
from structuredllm_gateway.openai.requests import parse_completion_request
from structuredllm_gateway.openai.sse import EventTooLongError, SseParser
from structuredllm_gateway.settings import AdmissionSettings
from structuredllm_gateway.validation.validators import ValidatorCache

_MORE = settings(max_examples=150, deadline=None)
_LIMITS = AdmissionSettings().limits
_SMALL = AdmissionSettings(
    max_body_depth=6,
    max_body_nodes=40,
    max_schema_nodes=25,
    max_schema_depth=5,
    max_properties=4,
    max_enum_values=4,
    max_enum_chars=20,
    max_string_chars=20,
    max_branches=3,
    max_expanded_nodes=12,
    max_repetitions=50,
    max_pattern_chars=10,
    max_pattern_depth=2,
    max_pattern_expansion=20,
    max_patterns_expansion=30,
).limits

_POINTERS = ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/items", "#x", "#/", "#/enum/0", "b.json", ""]
_KEYWORDS = [
    *("properties", "patternProperties", "$defs", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not"),
    *(
        "enum",
        "const",
        "pattern",
        "$ref",
        "$dynamicRef",
        "$anchor",
        "$id",
        "maxItems",
        "minItems",
        "maxLength",
    ),
    *("minProperties", "additionalProperties", "required", "type", "if", "examples", "a", "b", "x"),
]
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([*_POINTERS, "(a{9}){9}", "((((", "[", "object", "string"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_KEYWORDS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)
_SCHEMA = st.dictionaries(st.sampled_from(_KEYWORDS), _JSON, max_size=6)
_TOP = [
    *(
        "model",
        "stream",
        "n",
        "messages",
        "response_format",
        "structured_outputs",
        "tools",
        "functions",
        "text",
    ),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag", "chat_template"),
    *("chat_template_kwargs", "tool_choice", "prompt", "best_of"),
]
_ASKED = st.one_of(
    _JSON,
    st.fixed_dictionaries(
        {"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"schema": _SCHEMA})}
    ),
    st.fixed_dictionaries({"type": st.just("structural_tag"), "format": _JSON}),
    st.fixed_dictionaries({"json": _SCHEMA | _SCHEMA.map(json.dumps)}),
    st.lists(
        st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text(), "parameters": _SCHEMA})})
    ),
)
_BODY = st.dictionaries(st.sampled_from(_TOP), _ASKED, max_size=5)


@_MORE
@given(_BODY, st.booleans())
def test_any_body_is_read_or_refused(body: dict[str, Any], small: bool) -> None:
    raw = orjson.dumps({"model": "toy", **body})
    admission = Admission(_SMALL if small else _LIMITS, 4)
    try:
        request = parse_completion_request(raw, inspect=lambda whole: void(admission.check(raw, whole)))
        admit(request.structure, ValidatorCache(4))
    except RequestError as error:
        refusal = error
    else:
        return
    assert refusal.status == 400
    assert 0 < len(refusal.message) < 4000
    assert len(refusal.param or "") < 4000


def void(_: object) -> None:
    """Drop a value."""


@_MORE
@given(
    st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(GatewayError):
        parse_completion_request(raw)


@_MORE
@given(_SCHEMA)
def test_the_work_on_a_schema_is_linear_in_its_values(schema: dict[str, Any]) -> None:
    nodes = walk(schema, 200, 10_000, ("schema_too_deep", "schema_too_large"))
    references = orjson.dumps(schema).count(b'ef":')
    open_limits = replace(_LIMITS, max_repetitions=CAP, max_expanded_nodes=CAP, max_pattern_expansion=CAP)
    open_limits = replace(open_limits, max_patterns_expansion=CAP)
    found = survey(schema, "", open_limits)
    assert found.visited <= nodes
    assert check_expansion(found, schema, "", open_limits) <= 4 * (nodes + references) + 2


@_MORE
@given(st.text(alphabet='(){}[]\\,0123456789ab+*?|^$."', max_size=60), st.booleans())
def test_any_text_has_a_size(text: str, quoted: bool) -> None:
    facts = measure(text, quoted=quoted)
    assert 0 <= facts.depth <= text.count("(")
    assert 0 <= facts.expansion <= CAP
    if "{" not in text:
        assert facts.expansion <= len(text)


_LINES = st.lists(
    st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"{}",
            b"[DONE]",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b": c",
            b"event: x",
            b"\xc3\xa9",
            b" ",
            b"",
        ]
    )
    | st.binary(max_size=5),
    max_size=40,
).map(b"".join)


@_MORE
@given(_LINES, st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_a_stream_is_the_same_however_it_is_cut(wire: bytes, cuts: list[int]) -> None:
    whole = SseParser(10_000)
    expected = whole.feed(wire)
    last = whole.finish()
    parser = SseParser(10_000)
    got: list[Any] = []
    start = at = 0
    while start < len(wire):
        end = start + cuts[at % len(cuts)]
        got += parser.feed(wire[start:end])
        start, at = end, at + 1
    rest = parser.finish()
    passed = b"".join(e.raw for e in got)
    # What is left at the end gets the blank line that it lacks; line ends alone are nothing.
    assert passed + (rest.raw.removesuffix(b"\n\n") if rest else wire[len(passed) :]) == wire
    assert rest is not None or not wire[len(passed) :].strip(b"\r\n")
    if b"\r" not in wire:
        # A CR at a cut may or may not be the start of CRLF; everything else is the same event by event.
        assert [e.data for e in got] == [e.data for e in expected]
        assert (rest and rest.data) == (last and last.data)


@_MORE
@given(st.lists(st.binary(min_size=1, max_size=64), max_size=64))
def test_the_parser_never_holds_more_than_its_bound(chunks: list[bytes]) -> None:
    parser = SseParser(100)
    for chunk in chunks:
        try:
            parser.feed(chunk)
        except EventTooLongError:
            return
        assert len(parser._held) <= 100
