"""JSON as RFC 8259 has it, without the extensions of the standard library. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_WHITESPACE = " \t\n\r"
_FAILED = -1


class NotJsonError(ValueError):
    """The text is not one JSON value with unique names; the message says why."""


class SurroundedError(NotJsonError):
    """A JSON object or array is there, but with other text before or after it."""


def parse(text: str) -> Any:
    """Return the value of `text`.

    Raises:
        SurroundedError: text before or after a JSON value.
        NotJsonError: anything else that RFC 8259 does not allow or advises against: NaN, Infinity, a name
            twice in one object (which readers resolve differently), nesting beyond the interpreter's limit.
    """
    body = text.strip(_WHITESPACE)
    value, end = _decode(body, 0)
    if end == len(body):
        return value
    if end != _FAILED:
        raise SurroundedError(f"text after the JSON value: {body[end : end + 40]!r}")
    # A text that opens with a brace is a broken object, whatever valid parts it has inside.
    openers = [at for at in (body.find("{"), body.find("[")) if at >= 0]
    start = min(openers, default=0)
    if start and _decode(body, start)[1] != _FAILED:
        raise SurroundedError(f"text before the JSON value: {body[:40]!r}")
    raise NotJsonError(value)


def _decode(text: str, start: int) -> tuple[Any, int]:
    """Return (value, end); (reason, _FAILED) when no JSON value begins at `start`."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return str(error), _FAILED


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise NotJsonError(f"the name {name[:40]!r} occurs twice in one object")
        result[name] = value
    return result


def _no_constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
