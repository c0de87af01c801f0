"""Strict JSON against the standard library's parser: what it takes too, and what it takes and we do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from structuredllm_gateway.validation import strict_json
from structuredllm_gateway.validation.outcomes import Outcome
from structuredllm_gateway.validation.strict_json import ParsedText, TextFault, holds_json, parse_strict

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_SPACE = st.text(alphabet=" \t\r\n", max_size=5)
_CONTROLS = st.sampled_from([chr(code) for code in range(0x20)])
_SURROGATES = st.integers(0xD800, 0xDFFF)
# Near-JSON: pieces in any order, most of them wrong.
_NEAR = st.lists(
    st.sampled_from(
        [
            *("{", "}", "[", "]", ":", ",", '"', "'", "\\", "-", "+", ".", "0", "1", "e", "E", " ", "\n"),
            *(
                "true",
                "false",
                "null",
                "NaN",
                "Infinity",
                '"a"',
                '"a":',
                "\\u00e9",
                "\\ud83d",
                "\x00",
                "\ufeff",
            ),
            *("0x1", "1_0", "//", "#", "\u00a0", "\u2028", "\u00bd", "\u0661"),
        ]
    ),
    max_size=10,
).map("".join)


def _plain_json(text: str) -> Any:
    """Read as the standard library does, without its extensions and with names checked."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    value = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    json.dumps(value, ensure_ascii=False).encode()  # lone surrogates cannot be written
    text.encode()
    return value


def _outcome(text: str) -> Outcome | None:
    parsed = parse_strict(text)
    return parsed.outcome if isinstance(parsed, TextFault) else None


@settings(deadline=None, max_examples=150)
@given(_VALUES, _SPACE, _SPACE, st.sampled_from([None, 2]), st.booleans())
def test_what_is_json_is_read_to_the_same_value(
    value: Any, before: str, after: str, indent: int | None, ascii_only: bool
) -> None:
    text = before + json.dumps(value, indent=indent, ensure_ascii=ascii_only) + after
    assert parse_strict(text) == ParsedText(json.loads(text))


@settings(deadline=None, max_examples=300)
@given(_NEAR | st.text(max_size=30))
def test_a_text_is_taken_exactly_when_it_is_strict_json(text: str) -> None:
    try:
        value = _plain_json(text)
    except (ValueError, RecursionError):
        assert isinstance(parse_strict(text), TextFault)
    else:
        assert parse_strict(text) == ParsedText(value)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=8), _CONTROLS, st.text(max_size=8), st.booleans())
def test_a_raw_control_character_in_a_string_is_a_fault(
    before: str, control: str, after: str, as_name: bool
) -> None:
    inner = json.dumps(before)[1:-1] + control + json.dumps(after)[1:-1]
    text = f'{{"{inner}": 1}}' if as_name else f'{{"a": ["{inner}"]}}'
    assert isinstance(parse_strict(text), TextFault)
    escaped = text.replace(control, f"\\u{ord(control):04x}")
    assert not isinstance(parse_strict(escaped), TextFault)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=8), _SURROGATES, st.booleans(), st.booleans())
def test_a_lone_surrogate_is_a_fault_raw_or_escaped(
    before: str, code: int, escaped: bool, as_name: bool
) -> None:
    one = f"\\u{code:04x}" if escaped else chr(code)
    inner = json.dumps(before)[1:-1] + one
    assume(not inner.endswith("\\\\ud"))
    text = f'{{"{inner}": 1}}' if as_name else f'{{"a": "{inner}"}}'
    assert isinstance(parse_strict(text), TextFault)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=4), min_size=2, max_size=6), _VALUES)
def test_a_name_that_occurs_twice_is_a_fault(names: list[str], value: Any) -> None:
    inner = json.dumps(value)
    text = "{" + ", ".join(f"{json.dumps(name)}: {inner}" for name in names) + "}"
    duplicate = len(set(names)) < len(names)
    assert isinstance(parse_strict(text), TextFault) is duplicate
    assert isinstance(parse_strict(f"[[{text}]]"), TextFault) is duplicate
    # A name may be written in more than one way.
    assert _outcome('{"\\u0061": 1, "a": 2}') is Outcome.NOT_JSON


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"a": {}}}'])
def test_constants_of_python_and_javascript_are_faults(constant: str, form: str) -> None:
    text = form.format(constant)
    json.loads(text)  # the standard library takes it
    assert _outcome(text) is Outcome.NOT_JSON


@pytest.mark.parametrize(
    ("wrap", "outcome"),
    [
        (lambda text: "\ufeff" + text, Outcome.TRAILING_OR_LEADING_TEXT),
        (lambda text: text + "\u00a0", Outcome.TRAILING_OR_LEADING_TEXT),
        (lambda text: text + "\x00", Outcome.TRAILING_OR_LEADING_TEXT),
        (lambda text: text + "\x0c", Outcome.TRAILING_OR_LEADING_TEXT),
        (lambda text: "// hm\n" + text, Outcome.TRAILING_OR_LEADING_TEXT),
    ],
)
def test_what_is_no_white_space_in_json_is_text_around_it(
    wrap: Callable[[str], str], outcome: Outcome
) -> None:
    assert _outcome(wrap('{"a": 1}')) is outcome


@settings(deadline=None, max_examples=60)
@given(_VALUES, st.text(alphabet="abc {[\n", max_size=20), st.text(alphabet="abc .\n", max_size=20))
def test_json_inside_text_is_found(value: Any, before: str, after: str) -> None:
    assume(isinstance(value, dict | list))
    assume(before.count("{") + before.count("[") < 4)
    assert holds_json(before + json.dumps(value) + after)
    assert not holds_json("no value 1 true here")


@given(_NEAR | _VALUES.map(json.dumps) | _VALUES.map(lambda value: json.dumps(value, ensure_ascii=False)))
@settings(deadline=None)
def test_the_short_way_decides_as_the_long_one(text: str) -> None:
    short = parse_strict(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_plainly_right", lambda body: strict_json._UNSURE)
        long = parse_strict(text)
    assert repr(short) == repr(long)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a": 1, "a": 1}', False),
        ('{"a": {"b": "\\"", "b": "\\""}}', False),
        ('{"a": "\\u0022", "a": "\\u0022\\u0022"}', False),
        ('{"a": "x\\"", "b": "\\"\\n"}', True),
        ('{"a": "\\u0022\\u0022"}', True),
        ("[1e400]", True),
        ("[NaN]", False),
        ('["\\ud800"]', False),
        ("[12345678901234567890123]", True),
        ("[" * 300 + "]" * 300, True),
    ],
)
def test_what_the_short_way_must_not_miss(text: str, is_right: bool) -> None:
    parsed = parse_strict(text)
    assert isinstance(parsed, ParsedText) is is_right
    if is_right:
        assert isinstance(parsed, ParsedText)
        assert "e400" in text or parsed.value == json.loads(text)
