from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_probe.strict_json import NotJsonError, SurroundedError, parse

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(_VALUES, st.sampled_from(["", " ", "\n\t\r "]))
def test_every_json_value_is_read(value: object, space: str) -> None:
    assert parse(space + json.dumps(value) + space) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1, "a": 2}',
        '{"b": {"a": 1, "a": 1}}',
        '{"a": 1',
        "{'a': 1}",
        '{"a": 1,}',
        '{{"a": [1]}',
        '{"a": "\n"}',
        "[" * 100_000,
        "hello",
        "a { b",
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError) as raised:
        parse(text)
    assert type(raised.value) is NotJsonError


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff{}",
        '{"a": 1} ok',
        '{"a": 1}{"a": 1}',
        '```json\n{"a": 1}\n```',
        'Here: [1, {"b": 2}]',
        "12 apples",
    ],
)
def test_text_around_json_is_told_apart(text: str) -> None:
    with pytest.raises(SurroundedError):
        parse(text)
