from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.fakes.schema_answers import UnsupportedSchemaError, answer_for, violation_of

_SCHEMAS: list[dict[str, Any]] = [
    {"const": {"a": 1}},
    {"enum": ["x", "y"]},
    {"type": "integer", "minimum": 3, "maximum": 9},
    {"type": "integer", "maximum": -4},
    {"type": "integer", "exclusiveMinimum": 3},
    {"type": "number", "exclusiveMaximum": 0},
    {"type": ["string", "null"], "minLength": 7},
    {"type": "string", "maxLength": 1},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}, {"const": 2}]},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"allOf": [{"type": "string"}]},
    {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/person"}},
        "required": ["p"],
        "additionalProperties": False,
        "$defs": {
            "person": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        },
    },
]


@pytest.mark.parametrize("schema", _SCHEMAS, ids=str)
def test_answers_satisfy_and_violations_do_not(schema: dict[str, Any]) -> None:
    assert jsonschema_rs.is_valid(schema, answer_for(schema))
    assert not jsonschema_rs.is_valid(schema, violation_of(schema))


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "does not satisfy"),
        ({"type": "integer", "multipleOf": 7}, "does not satisfy"),
        ({"type": "strnig"}, "strnig"),
        ({"enum": []}, "empty"),
        ({"$ref": "http://other/schema"}, "inside the document"),
        ({"$ref": "#/$defs/nope"}, "points to nothing"),
        ({"$ref": "#"}, "deeper"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "does not satisfy"),
    ],
)
def test_what_the_generator_cannot_do_is_an_error(schema: dict[str, Any], hint: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=hint):
        answer_for(schema)


def test_nothing_violates_the_schema_true() -> None:
    with pytest.raises(UnsupportedSchemaError):
        violation_of(True)
