"""RFC 8259 JSON, read strictly, with a class for each way a text fails to be that.

Owns the reading of answers; pure, must not import I/O. Stricter than Python's `json`: NaN and Infinity,
duplicate names (RFC 8259 section 4: unpredictable), raw control characters and lone surrogates are faults.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from math import isinf
from typing import Any

import orjson

from structuredllm_gateway.validation.exact_json import has_long_number
from structuredllm_gateway.validation.outcomes import Outcome

_WHITESPACE = " \t\r\n"
_CONTAINER_OPENERS = "{["
# How many opening brackets are tried as the start of a value that has text before it; bounds the work.
_MAX_STARTS = 8
# Longer integers make int() refuse (CPython's digit limit); they are still valid JSON.
_MAX_INT_DIGITS = 4000


@dataclass(frozen=True)
class ParsedText:
    """A text that is one JSON value."""

    value: Any


@dataclass(frozen=True)
class TextFault:
    """A text that is not; `outcome` is NOT_JSON, TRAILING_OR_LEADING_TEXT or EMPTY, `reason` one clause."""

    outcome: Outcome
    reason: str


class _StrictnessError(ValueError):
    """Python's parser would accept what RFC 8259 (or its advice) does not."""


def _no_constant(name: str) -> Any:
    raise _StrictnessError(f"{name} is not JSON")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _StrictnessError(f"the name {name[:64]!r} occurs twice in one object")
            seen.add(name)
    return value


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else Decimal(digits)


def _number(digits: str) -> float | Decimal:
    value = float(digits)
    return Decimal(digits) if isinf(value) else value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_names, parse_constant=_no_constant, parse_int=_integer, parse_float=_number
)


_UNSURE = object()


def _plainly_right(body: str) -> Any:
    """Return the value of a text of which orjson alone can tell that it is right, else `_UNSURE`.

    orjson refuses all that RFC 8259 does, and lone surrogates; but of two members with one name it drops the
    first, and long integers become floats. A dropped member takes its quotes along, so the text written anew
    has fewer: escaped or not, every other quote is written as one, unless it came as an escape by number.
    """
    if "\\u" in body:
        return _UNSURE
    try:
        value = orjson.loads(body)
        written = orjson.dumps(value)
    except (orjson.JSONDecodeError, TypeError):
        return _UNSURE  # wrong, or nested too deep: the reader below says which
    if written.count(b'"') != body.count('"') or has_long_number(body.encode()):
        return _UNSURE
    return value


def parse_strict(text: str) -> ParsedText | TextFault:
    """Read `text` as exactly one JSON value, white space around it allowed."""
    body = text.strip(_WHITESPACE)
    if not body:
        return TextFault(Outcome.EMPTY, "the answer has no text")
    value = _plainly_right(body)
    if value is not _UNSURE:
        return ParsedText(value)
    try:
        value, end = _DECODER.raw_decode(body)
    except _StrictnessError as error:
        return TextFault(Outcome.NOT_JSON, str(error))
    except RecursionError:
        return TextFault(Outcome.NOT_JSON, "the answer is nested too deep to read")
    except json.JSONDecodeError as error:
        if body[0] not in _CONTAINER_OPENERS and _holds_value(body):
            return TextFault(Outcome.TRAILING_OR_LEADING_TEXT, "a JSON value has text before it")
        return TextFault(Outcome.NOT_JSON, f"{error.msg} at character {error.pos}")
    if end != len(body):
        if isinstance(value, dict | list | str):
            reason = f"the JSON value ends at character {end}, text follows it"
            return TextFault(Outcome.TRAILING_OR_LEADING_TEXT, reason)
        return TextFault(Outcome.NOT_JSON, f"unexpected text at character {end}")
    if not body.isascii() and _lone_surrogate(body):
        return TextFault(Outcome.NOT_JSON, "the answer has a lone surrogate")
    if "\\u" in body and _lone_surrogate(value):
        return TextFault(Outcome.NOT_JSON, "a string has a lone surrogate escape")
    return ParsedText(value)


def holds_json(text: str) -> bool:
    """Return whether `text` is, or has somewhere in it, a JSON object or array."""
    if not isinstance(parse_strict(text), TextFault):
        return text.lstrip(_WHITESPACE)[:1] in _CONTAINER_OPENERS
    return _holds_value(text) or _ends_with_value(text)


def _ends_with_value(text: str) -> bool:
    """Look for a value from the end on: thinking may have brackets of its own before the answer."""
    end = len(text)
    for _ in range(_MAX_STARTS):
        end = max(text.rfind(opener, 0, end) for opener in _CONTAINER_OPENERS)
        if end < 0:
            return False
        try:
            _DECODER.raw_decode(text, end)
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _holds_value(body: str) -> bool:
    start, tried = 0, 0
    while tried < _MAX_STARTS:
        found = [at for at in (body.find(opener, start) for opener in _CONTAINER_OPENERS) if at >= 0]
        if not found:
            return False
        start = min(found)
        try:
            _DECODER.raw_decode(body, start)
        except (ValueError, RecursionError):
            start, tried = start + 1, tried + 1
            continue
        return True
    return False


def _lone_surrogate(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                return True
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
