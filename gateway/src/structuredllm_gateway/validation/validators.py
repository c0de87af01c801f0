"""Compiled JSON Schema validators, kept by the schema's hash in a bounded LRU.

Owns the compilation (draft 2020-12, jsonschema-rs). Pure, must not import I/O: references are resolved
inside the schema only, nothing is ever fetched. Patterns run on the linear-time regex engine, so a pattern
cannot stall the gateway; look-around and back-references are therefore refused.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from structuredllm_gateway.validation import exact_json

Schema = Mapping[str, Any] | bool


class SchemaCompileError(ValueError):
    """The schema is not one that can be compiled; `pointer` is the place in it ("" = the whole)."""

    def __init__(self, message: str, pointer: str) -> None:
        """Build with one sentence and a JSON pointer relative to the schema."""
        super().__init__(message)
        self.message = message
        self.pointer = pointer


@dataclass(frozen=True)
class SchemaViolation:
    """The first place where a value does not satisfy its schema.

    `keyword` is the keyword that failed. The message holds no part of the value: answers are not logged.
    """

    pointer: str
    keyword: str

    @property
    def message(self) -> str:
        """One clause for a client or a log line."""
        return f"the value at {self.pointer or 'the root'} violates {self.keyword!r}"


@dataclass(frozen=True)
class CompiledSchema:
    """A validator and the hash of its schema (hex, 16 characters of SHA-256 over sorted keys)."""

    key: str
    validator: jsonschema_rs.Validator

    def violation(self, value: Any) -> SchemaViolation | None:
        """Return the first violation in `value` (as read by `strict_json`), None when there is none."""
        if self.validator.is_valid(value):
            return None
        for error in self.validator.iter_errors(value):
            return SchemaViolation(json_pointer(error.instance_path), error.kind.name)
        return None


class ValidatorCache:
    """Compiled schemas; the one unused longest goes first. Not for threads.

    At most `capacity` are kept, and at most so many that their texts have `max_bytes` together (one alone
    may be larger). With `assert_formats` the keyword `format` is checked, else it is an annotation, as draft
    2020-12 has it by default.
    """

    def __init__(
        self, capacity: int, *, max_bytes: int = 16 * 1024 * 1024, assert_formats: bool = False
    ) -> None:
        """Start empty."""
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._assert_formats = assert_formats
        self._entries: OrderedDict[bytes, tuple[CompiledSchema, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def compiled(self, schema: Schema) -> CompiledSchema:
        """Return the validator of `schema`, compiling it when it is not in the cache.

        Raises:
            SchemaCompileError: not a draft 2020-12 schema, a reference leads outside of it, or a pattern is
                not a regular expression of the linear-time engine.
        """
        text = exact_json.dumps(schema, sorted_names=True)
        digest = hashlib.sha256(text).digest()
        kept = self._entries.get(digest)
        if kept is not None:
            self._entries.move_to_end(digest)
            return kept[0]
        compiled = CompiledSchema(digest.hex()[:16], _compile(schema, self._assert_formats))
        self._entries[digest] = (compiled, len(text))
        self._bytes += len(text)
        while len(self._entries) > 1 and (
            len(self._entries) > self._capacity or self._bytes > self._max_bytes
        ):
            self._bytes -= self._entries.popitem(last=False)[1][1]
        return compiled


def json_pointer(path: Sequence[str | int]) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _compile(schema: Schema, assert_formats: bool) -> jsonschema_rs.Validator:
    whole = schema if isinstance(schema, bool) else dict(schema)
    try:
        return jsonschema_rs.Draft202012Validator(
            whole,
            offline=True,
            validate_formats=assert_formats,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=1 << 20),
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaCompileError(error.message, json_pointer(error.instance_path)) from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaCompileError(str(error).splitlines()[0], "") from error
