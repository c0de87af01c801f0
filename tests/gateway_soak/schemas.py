"""Generated JSON Schemas (draft 2020-12), each with a value that satisfies it, and values that do not.

Owns the generator and the independent judgement: strict `json` of the standard library and the `jsonschema`
package. Must not import the gateway: it is what the gateway is measured against. Everything comes from the
`Random` that is given, so a seed gives the same schemas again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

# Pieces of strings that have broken readers: escapes, structure inside of strings, wide characters, markers.
_PIECES = (
    *"abcxyz019 _-",
    *'"\\/{}[]:,',
    "\n",
    "\t",
    "\u0001",
    "\u007f",
    "\u00e9",
    "\u00df",
    "\u2028",
    "\ufeff",
    "\u4e2d",
    "\U0001f600",
    "e\u0301",
    "</think>",
    "data: ",
    "[DONE]",
    "null",
    "\r\n",
)
_NAMES = ("id", "name", "naïve", "a/b", "x~y", "$v", "tags", "list", "q1", "with space", 'quo"te', "\u4f60")
# (pattern, a text that it matches): the same language for every regular expression engine.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("^[a-z]{2,6}$", "hello"),
    ("^[A-Z]{3}-[0-9]{2,4}$", "ABC-123"),
    ("[0-9]", "a1b"),
    ("^(yes|no)$", "yes"),
    ("^x.*y$", "x--y"),
)
# As above, of the whole text.
_EXPRESSIONS: tuple[tuple[str, str], ...] = (
    ("[a-z]{3,8}", "words"),
    ("(yes|no|maybe)", "maybe"),
    ("[0-9]{4}-[0-9]{2}-[0-9]{2}", "2026-11-30"),
    ("a.b", "a\nb"),
    ("\u00e9+[.?!]", "\u00e9\u00e9!"),
)
_CHOICES = ("yes", "no", "no\nplease", "y", "\u00e9t\u00e9", "a b", '"quoted"', "positive")
_MAX_DEPTH = 4


@dataclass(frozen=True)
class Sample:
    """A schema and a value that satisfies it."""

    schema: Schema
    value: Any

    def accepts(self, text: str) -> bool:
        """Whether `text` is one strict JSON value that satisfies the schema."""
        try:
            value = read_strict(text)
        except (ValueError, RecursionError):
            return False
        return bool(_validator(self.schema).is_valid(value))

    def satisfied_by(self, value: Any) -> bool:
        """Whether `value` satisfies the schema."""
        return bool(_validator(self.schema).is_valid(value))


@dataclass(frozen=True)
class TextSample:
    """A regular expression or a list of words (as asked for), and a text that is one of them."""

    schema: Any
    value: str

    def accepts(self, text: str) -> bool:
        """Whether the whole text is what was asked for."""
        if isinstance(self.schema, str):
            return re.fullmatch(self.schema, text, re.DOTALL) is not None
        return text in self.schema


def regex_sample(rng: Random) -> TextSample:
    """Return a regular expression and a text that it matches as a whole."""
    return TextSample(*rng.choice(_EXPRESSIONS))


def choice_sample(rng: Random) -> TextSample:
    """Return a list of words and one of them."""
    words = rng.sample(_CHOICES, rng.randrange(2, len(_CHOICES)))
    return TextSample(words, rng.choice(words))


def read_strict(text: str) -> Any:
    """Read one JSON value as RFC 8259 has it, names unique, no lone surrogates.

    Raises:
        ValueError: it is not one.
    """
    value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique, parse_int=_integer)
    json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")  # a lone surrogate is a ValueError
    return value


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice")
    return value


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 4000 else Decimal(digits)


def _validator(schema: Schema) -> Any:
    return Draft202012Validator(schema)


def sample(rng: Random) -> Sample:
    """Return a schema whose root is an object, as engines are asked, and a value that satisfies it."""
    while True:
        schema, value = _object(rng, 0)
        if rng.random() < 0.15:
            schema, value = _with_definitions(rng, schema, value)
        found = Sample(schema, value)
        # Parts are right one by one; together (for example two names that are the same) they may not be.
        if found.satisfied_by(value):
            return found


def violation(rng: Random, good: Sample) -> Any:
    """Return a value that does not satisfy the schema, close to the one that does.

    Raises:
        LookupError: none was found; the schema takes nearly everything.
    """
    for _ in range(60):
        candidate = _mutated(rng, json.loads(json.dumps(good.value)))
        if not good.satisfied_by(candidate):
            return candidate
    for candidate in (None, [], "text", 7, {}):
        if not good.satisfied_by(candidate):
            return candidate
    raise LookupError("no violation")


def text_of(rng: Random, value: Any) -> str:
    """Write a value as JSON in one of the ways in which models write."""
    style: dict[str, Any] = rng.choice(
        ({"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 1, "separators": (" , ", " : ")})
    )
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, **style)
    if "/" in text and rng.random() < 0.2:
        text = text.replace("/", "\\/")
    around = rng.random()
    return f"\n {text}\r\n\t" if around < 0.05 else f"{text}\n" if around < 0.1 else text


def _string(rng: Random, _depth: int) -> tuple[Schema, Any]:
    if rng.random() < 0.2:
        pattern, value = rng.choice(_PATTERNS)
        schema: Schema = {"type": "string", "pattern": pattern}
        if rng.random() < 0.5:
            schema["maxLength"] = len(value) + rng.randrange(4)
        return schema, value
    text = "".join(rng.choice(_PIECES) for _ in range(rng.randrange(9)))
    schema = {"type": "string"}
    if rng.random() < 0.4:
        schema["maxLength"] = len(text) + rng.randrange(4)
    if rng.random() < 0.3:
        schema["minLength"] = rng.randrange(len(text) + 1)
    return schema, text


def _integer_node(rng: Random, _depth: int) -> tuple[Schema, Any]:
    value = rng.choice((0, 1, -1, 7, rng.randrange(-1000, 1000), 2**53 + 1, -(2**63), 2**64, 10**25))
    schema: Schema = {"type": "integer"}
    if rng.random() < 0.4:
        schema["minimum"] = value - rng.randrange(5)
    if rng.random() < 0.4:
        schema[rng.choice(("exclusiveMaximum",))] = value + 1 + rng.randrange(5)
    if abs(value) < 1000 and rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([n for n in (1, 2, 5, 7) if value % n == 0])
    return schema, value


def _number(rng: Random, _depth: int) -> tuple[Schema, Any]:
    value = rng.choice((0.5, -0.25, 1e3, 1.5e-7, 3.25, 12345.75, float(rng.randrange(100))))
    schema: Schema = {"type": "number"}
    if rng.random() < 0.4:
        schema["minimum"] = value - 1
    if rng.random() < 0.4:
        schema["exclusiveMaximum"] = value + 0.5
    return schema, value


def _constant(rng: Random, _depth: int) -> tuple[Schema, Any]:
    options = [
        rng.choice(("red", "green", "", "\u00e9", 1, 2.5, None, True, [1], {"a": 1})) for _ in range(3)
    ]
    value = options[0]
    return ({"const": value} if rng.random() < 0.3 else {"enum": options}), value


def _plain(rng: Random, _depth: int) -> tuple[Schema, Any]:
    return rng.choice((({"type": "boolean"}, True), ({"type": "boolean"}, False), ({"type": "null"}, None)))


def _nullable(rng: Random, depth: int) -> tuple[Schema, Any]:
    schema, value = _string(rng, depth)
    return {**schema, "type": ["string", "null"]}, (None if rng.random() < 0.3 else value)


def _array(rng: Random, depth: int) -> tuple[Schema, Any]:
    schema, _ = _node(rng, depth + 1)
    pairs = [_node(rng, depth + 1) for _ in range(rng.randrange(3))]
    if pairs and rng.random() < 0.3:
        values = [value for _, value in pairs]
        head: Schema = {"type": "array", "prefixItems": [one for one, _ in pairs], "items": False}
        return head, values
    if rng.random() < 0.3:
        numbers = rng.sample(range(100), rng.randrange(1, 5))
        unique: Schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
        if rng.random() < 0.5:
            unique |= {"contains": {"const": numbers[0]}, "maxContains": 1}
        return unique, numbers
    inner, value = _node(rng, depth + 1)
    count = rng.randrange(4)
    schema = {"type": "array", "items": inner, "maxItems": count + rng.randrange(3)}
    if rng.random() < 0.5:
        schema["minItems"] = count
    return schema, [value] * count


def _object(rng: Random, depth: int) -> tuple[Schema, Any]:
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    properties: dict[str, Schema] = {}
    value: dict[str, Any] = {}
    required = []
    for name in names:
        properties[name], item = _node(rng, depth + 1)
        if rng.random() < 0.8:
            value[name] = item
            if rng.random() < 0.8:
                required.append(name)
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    kind = rng.random()
    if kind < 0.6:
        schema["additionalProperties"] = False
    elif kind < 0.7:
        schema["additionalProperties"] = {"type": "integer"}
        value["extra"] = 3
    elif kind < 0.8:
        schema |= {"patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": False}
        value["x_1"] = True
    elif kind < 0.85:
        schema["propertyNames"] = {"maxLength": 12}
    if len(required) >= 2 and rng.random() < 0.1:
        schema["dependentRequired"] = {required[0]: [required[1]]}
    # The order of an answer's members is the model's own.
    members = list(value.items())
    rng.shuffle(members)
    return schema, dict(members)


def _combined(rng: Random, depth: int) -> tuple[Schema, Any]:
    schema, value = _node(rng, depth + 1)
    other, _ = _node(rng, depth + 1)
    match rng.randrange(5):
        case 0:
            return {"anyOf": [other, schema]}, value
        case 1:
            return {"allOf": [schema, {"not": {"const": "never this"}}]}, value
        case 2:
            low, high = {"type": "integer", "minimum": 10}, {"multipleOf": 5}
            return {"allOf": [low, high]}, rng.choice((10, 15, 500))
        case 3:
            return {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 5}]}, rng.choice(
                (4, "four")
            )
        case _:
            condition: Schema = {
                "type": "object",
                "properties": {"kind": {"enum": ["a", "b"]}, "of": True},
                "required": ["kind"],
                "if": {"properties": {"kind": {"const": "a"}}},
                "then": {"required": ["of"]},
                "else": {"properties": {"of": False}},
            }
            return condition, rng.choice(({"kind": "a", "of": 1}, {"kind": "b"}))


def _with_definitions(rng: Random, schema: Schema, value: Any) -> tuple[Schema, Any]:
    tree: Schema = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
        "required": ["v"],
        "additionalProperties": False,
    }
    grown: dict[str, Any] = {"v": 0}
    for number in range(rng.randrange(4)):
        grown = {"v": number, "next": grown}
    properties = {**schema["properties"], "tree": {"$ref": "#/$defs/tree"}}
    whole = {**schema, "properties": properties, "$defs": {"tree": tree}}
    whole["required"] = [*schema["required"], "tree"]
    return whole, {**value, "tree": grown}


_KINDS: tuple[Callable[[Random, int], tuple[Schema, Any]], ...] = (
    _string,
    _string,
    _integer_node,
    _number,
    _constant,
    _plain,
    _nullable,
)
_DEEP_KINDS = (*_KINDS, _array, _array, _object, _object, _combined)


def _node(rng: Random, depth: int) -> tuple[Schema, Any]:
    return rng.choice(_DEEP_KINDS if depth < _MAX_DEPTH else _KINDS)(rng, depth)


def _mutated(rng: Random, value: Any) -> Any:
    """Change one place of a value (which is this function's own)."""
    if isinstance(value, dict) and value and rng.random() < 0.6:
        name = rng.choice(list(value))
        value[name] = _mutated(rng, value[name])
        return value
    if isinstance(value, list) and value and rng.random() < 0.6:
        place = rng.randrange(len(value))
        value[place] = _mutated(rng, value[place])
        return value
    if isinstance(value, dict):
        if value and rng.random() < 0.5:
            value.pop(rng.choice(list(value)))
            return value
        return rng.choice(({**value, "unexpected": 1}, list(value), str(len(value))))
    if isinstance(value, list):
        return rng.choice((value + value + [None], value[:-1], [*value, "more"], {"0": value}))
    if isinstance(value, str):
        return rng.choice((value + "!" * 12, value[:-1], "", len(value), [value], value.upper() + "?"))
    if isinstance(value, bool) or value is None:
        return rng.choice((str(value).lower(), 0, []))
    return rng.choice((str(value), value + 10**6, -value - 10**6, value + 0.25, None, [value]))
