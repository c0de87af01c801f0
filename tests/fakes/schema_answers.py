"""Builds one JSON value that satisfies a JSON Schema: what an engine with working grammars would answer.

Owns the generator of the fake engine only. Must not import any product package: it is their test double.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

# A self-referencing schema would recurse for ever; no answer in our tests nests deeper than this.
_MAX_DEPTH = 32


class UnsupportedSchemaError(ValueError):
    """The generator cannot build an instance of this schema; the message names the place and the keyword."""


def answer_for(schema: Mapping[str, Any] | bool) -> Any:
    """Return a value that satisfies `schema`.

    Args:
        schema: a JSON Schema (subset of draft 2020-12: type, enum, const, properties, required, items,
            prefixItems, minItems, minimum, maximum, exclusive bounds, minLength, anyOf, oneOf, allOf with
            one member, local $ref).

    Raises:
        UnsupportedSchemaError: when the subset does not reach, e.g. `pattern`. Every result is checked with a
            real validator, so a keyword unknown to the generator never gives a wrong answer.
    """
    value = _build(schema, schema, "#", 0)
    try:
        valid = jsonschema_rs.validator_for(
            dict(schema) if not isinstance(schema, bool) else schema
        ).is_valid(value)
    except (ValueError, TypeError) as error:
        raise UnsupportedSchemaError(f"not a valid JSON Schema: {error}") from error
    if not valid:
        raise UnsupportedSchemaError(
            f"the generator's answer {value!r} does not satisfy the schema: use simpler keywords"
        )
    return value


def violation_of(schema: Mapping[str, Any] | bool) -> Any:
    """Return a JSON value that does not satisfy `schema`, as close to a right answer as possible.

    Raises:
        UnsupportedSchemaError: when every candidate satisfies the schema (e.g. the schema `true`).
    """
    good = answer_for(schema)
    candidates: list[Any] = []
    if isinstance(good, dict):
        candidates += [{k: v for k, v in good.items() if k != name} for name in good]
        candidates.append({**good, "unexpected": True})
    candidates += ["wrong type", -1, None, [], {}]
    validator = jsonschema_rs.validator_for(schema if isinstance(schema, bool) else dict(schema))
    for candidate in candidates:
        if not validator.is_valid(candidate):
            return candidate
    raise UnsupportedSchemaError(f"every candidate satisfies the schema {json.dumps(schema)[:200]}")


def _build(schema: Any, root: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UnsupportedSchemaError(
            f"{where}: nested deeper than {_MAX_DEPTH} levels (a $ref that refers to itself?)"
        )
    if schema is True:
        return None
    if not isinstance(schema, Mapping):
        raise UnsupportedSchemaError(f"{where}: expected a schema object, got {type(schema).__name__}")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        if not schema["enum"]:
            raise UnsupportedSchemaError(f"{where}/enum: empty, nothing can satisfy it")
        return schema["enum"][0]
    if "$ref" in schema:
        return _build(_resolve(schema["$ref"], root, where), root, schema["$ref"], depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            return _build(schema[keyword][0], root, f"{where}/{keyword}/0", depth + 1)
    if len(schema.get("allOf", ())) == 1:
        return _build(schema["allOf"][0], root, f"{where}/allOf/0", depth + 1)
    return _build_typed(schema, root, where, depth)


def _build_typed(schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    match kind:
        case "object":
            properties = schema.get("properties", {})
            names = [*properties, *(n for n in schema.get("required", ()) if n not in properties)]
            return {
                name: _build(properties.get(name, True), root, f"{where}/properties/{name}", depth + 1)
                for name in names
            }
        case "array":
            head = schema.get("prefixItems", [])
            count = max(schema.get("minItems", 0), len(head))
            return [
                _build(
                    head[i] if i < len(head) else schema.get("items", True),
                    root,
                    f"{where}/items/{i}",
                    depth + 1,
                )
                for i in range(count)
            ]
        case "string":
            return "x" * max(schema.get("minLength", 0), min(2, schema.get("maxLength", 2)))
        case "integer":
            return _number(schema, integer=True)
        case "number":
            return _number(schema, integer=False)
        case "boolean":
            return True
        case "null":
            return None
    raise UnsupportedSchemaError(f"{where}/type: {kind!r} is not a JSON Schema type")


def _number(schema: Mapping[str, Any], *, integer: bool) -> int | float:
    step = 1 if integer else 0.5
    if "minimum" in schema:
        low = schema["minimum"]
    elif "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    else:
        high = schema.get("maximum", schema.get("exclusiveMaximum", 1 + step) - step)
        low = min(1, high)
    return math.ceil(low) if integer else float(low)


def _resolve(ref: Any, root: Any, where: str) -> Any:
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise UnsupportedSchemaError(f"{where}/$ref: only references inside the document work, got {ref!r}")
    node = root
    for part in ref[2:].split("/") if ref != "#" else []:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            raise UnsupportedSchemaError(f"{where}/$ref: {ref!r} points to nothing")
        node = node[key]
    return node
