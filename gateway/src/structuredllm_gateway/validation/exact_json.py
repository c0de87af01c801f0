"""Requests and schemas as JSON, with every digit of their integers.

Owns one reader and one writer. orjson reads an integer of more than 64 bits as a float, which changes what a
schema with such a bound allows: an answer that is exactly the bound would be refused. Pure: must not import
I/O.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

# 2**63 has 19 digits. To look for so many in a row costs less than a microsecond per KiB.
_LONG = b"0" * 19
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))


def loads(text: bytes | str) -> Any:
    """Read JSON as orjson does, but integers of any length as integers.

    Where such a text cannot be read that way (nested deeper than Python's own parser goes, thousands of
    digits), it is as orjson reads it.

    Raises:
        orjson.JSONDecodeError: not JSON.
    """
    value = orjson.loads(text)
    raw = text.encode() if isinstance(text, str) else text
    if has_long_number(raw):
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return value
    return value


def has_long_number(text: bytes) -> bool:
    """Whether there are so many digits in a row that orjson may read an integer as a float."""
    return _LONG in text.translate(_DIGITS)


def dumps(value: Any, *, sorted_names: bool = False) -> bytes:
    """Write what `loads` has read; `sorted_names` = the same bytes for the same value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sorted_names else None)
    except TypeError:
        return json.dumps(value, sort_keys=sorted_names, ensure_ascii=False, separators=(",", ":")).encode()
