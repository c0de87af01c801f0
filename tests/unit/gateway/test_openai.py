"""Wire shapes: events however they are cut, the structure a request asks for, engines' errors."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.errors import RequestError
from structuredllm_gateway.openai.errors import engine_error, engine_error_of_body
from structuredllm_gateway.openai.requests import parse_completion_request, requested_structure
from structuredllm_gateway.openai.sse import EventTooLongError, SseParser, data_event, verdict_comment

_STREAM = (
    b': hello\n\nevent: x\ndata: {"a":\n\ndata:two\ndata: lines\r\n\r\n\rdata: \xc3\xa9\r\rdata: [DONE]\n\n'
)


def _parsed(parts: list[bytes]) -> tuple[bytes, list[bytes | None]]:
    parser = SseParser(1000)
    events = [event for part in parts for event in parser.feed(part)]
    rest = parser.finish()
    if rest is not None:
        events.append(rest)
    return b"".join(e.raw for e in events), [e.data for e in events if e.data is not None]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, len(_STREAM)), max_size=8))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(_STREAM)]
    parts = [_STREAM[a:b] for a, b in pairwise(places)]
    raw, data = _parsed(parts)
    assert data == [b'{"a":', b"two\nlines", b"\xc3\xa9", b"[DONE]"]
    assert raw.replace(b"\n", b"").replace(b"\r", b"") == _STREAM.replace(b"\n", b"").replace(b"\r", b"")


def test_every_single_cut() -> None:
    for at in range(len(_STREAM) + 1):
        assert _parsed([_STREAM[:at], _STREAM[at:]])[1] == [b'{"a":', b"two\nlines", b"\xc3\xa9", b"[DONE]"]


def test_event_without_end_is_bounded_and_what_is_left_comes_out_at_the_end() -> None:
    parser = SseParser(10)
    assert parser.feed(b"data: abc") == []
    rest = parser.finish()
    assert rest is not None
    assert rest.data == b"abc"
    assert parser.finish() is None
    with pytest.raises(EventTooLongError):
        parser.feed(b"data: 0123456789")


def test_written_events_are_what_the_parser_reads() -> None:
    events = SseParser(100).feed(data_event(b"{}") + verdict_comment("ok"))
    assert [event.data for event in events] == [b"{}", None]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, ({"type": "object"}, "/response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            (True, "/response_format/json_schema/schema"),
        ),
        ({"structured_outputs": {"json": {"a": 1}}}, ({"a": 1}, "/structured_outputs/json")),
        ({"structured_outputs": {"json": '{"a": 1}'}}, ({"a": 1}, "/structured_outputs/json")),
        (
            {"structured_outputs": {"json_object": True}},
            ({"type": "object"}, "/structured_outputs/json_object"),
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            ({"type": "string", "pattern": "^(?:a+)$"}, "/structured_outputs/regex"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b", "a"]}},
            ({"enum": ["a", "b"]}, "/structured_outputs/choice"),
        ),
        ({"structured_outputs": {"grammar": "root ::= "}}, (None, "/structured_outputs/grammar")),
        ({"response_format": {"type": "structural_tag"}}, (None, "/response_format")),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"json": {"type": "object"}, "json_object": False},
            },
            ({"type": "object"}, "/response_format"),
        ),
    ],
)
def test_structure_is_found_wherever_it_is_asked_for(
    body: dict[str, Any], expected: tuple[Any, str] | None
) -> None:
    found = requested_structure(body)
    assert (None if found is None else (found.schema, found.pointer)) == expected


def test_two_different_structures_are_refused() -> None:
    for second in ("regex", "grammar"):
        with pytest.raises(RequestError) as caught:
            requested_structure({"structured_outputs": {"json": {"a": 1}, second: "a"}})
        assert caught.value.param == f"/structured_outputs/{second}"


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_a_request_error(body: bytes) -> None:
    try:
        parse_completion_request(body)
    except RequestError:
        return


@settings(deadline=None, max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "model",
                        "stream",
                        "response_format",
                        "type",
                        "json_schema",
                        "schema",
                        "structured_outputs",
                        "json",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_request_or_a_request_error(value: Any) -> None:
    try:
        parse_completion_request(json.dumps(value).encode())
    except RequestError:
        return


@pytest.mark.parametrize(
    ("payload", "rejected"),
    [
        ({"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}, True),
        ({"object": "error", "message": "Failed to advance FSM for request x", "type": "x"}, True),
        ({"error": {"message": "Grammar rejected tokens"}}, True),
        ({"error": "grammar failed"}, True),
        ({"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}, False),
        ({"error": {"message": "Internal server error", "type": "Other"}}, False),
        ({"error": {"message": "x", "type": "grammar_rejected", "code": "grammar_rejected"}}, True),
        ({"error": {"message": "The grammar is stuck.", "type": "grammar_dead_end"}}, False),
        ({"error": {"message": "grammar", "type": "grammar_compiler_unavailable"}}, False),
    ],
)
def test_grammar_reject_is_told_from_other_failures(payload: Any, rejected: bool) -> None:
    found = engine_error(payload)
    assert found is not None
    assert found.is_grammar_reject is rejected
    assert found.code is None or isinstance(found.code, str)


@pytest.mark.parametrize(
    ("kind", "schemas_fault"),
    [
        ("grammar_dead_end", True),
        ("grammar_unsupported", True),
        ("grammar_compile_failed", True),
        ("grammar_compile_timeout", True),
        ("grammar_compile_memory", True),
        ("grammar_rejected", False),
        ("grammar_compiler_unavailable", False),
        ("InternalServerError", False),
    ],
)
def test_named_causes_that_lie_in_the_schema_are_known(kind: str, schemas_fault: bool) -> None:
    found = engine_error({"error": {"message": "x", "type": kind, "code": kind}})
    assert found is not None
    assert found.is_schema_cause is found.is_about_schema is schemas_fault


@pytest.mark.parametrize(
    "body", [b"", b"upstream failure", b"[]", b'{"choices": []}', b'{"error": null}', b"5"]
)
def test_other_bodies_are_no_engine_error(body: bytes) -> None:
    assert engine_error_of_body(body) is None
