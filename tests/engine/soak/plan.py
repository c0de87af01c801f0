"""What a soak sends: bursts of structured requests with a schema each, plain ones, and clients that leave.

Pure: the same seed gives the same plan.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STAYING = 36
PLAIN = 8
LEAVING = 4
"""Requests of each kind in a burst. All of a burst are in flight together, so this bounds the concurrency."""

LONGEST_STAY_SECONDS = 0.8
MAX_TOKENS = 400
"""Far above the longest answer that any of the schemas allows, if each character is a token of its own."""

WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven")


@dataclass(frozen=True)
class Planned:
    """One request.

    Attributes:
        number: unique in the plan; also the sampling seed.
        kind: of the schema, or "plain".
        schema: None for a plain request.
        words: length of the prompt.
        stream: whether the answer is asked for as a stream.
        leave_after: seconds after which the client goes away; None for one that stays.
    """

    number: int
    kind: str
    schema: dict[str, Any] | None
    words: int
    stream: bool
    leave_after: float | None = None


def bursts(structured: int, seed: int) -> Iterator[list[Planned]]:
    """Yield bursts until `structured` requests with a schema that stay were planned."""
    rng = random.Random(seed)  # noqa: S311 - wants a repeatable plan
    number = 0
    while structured > 0:
        staying = min(STAYING, structured)
        structured -= staying
        burst = []
        for position in range(staying + PLAIN + LEAVING):
            number += 1
            plain = staying <= position < staying + PLAIN
            leaves = position >= staying + PLAIN
            kind = "plain" if plain else rng.choice(list(KINDS))
            burst.append(
                Planned(
                    number=number,
                    kind=kind,
                    schema=None if plain else schema_of(kind, number, rng),
                    words=rng.randrange(60),
                    stream=rng.random() < 0.5,
                    leave_after=rng.uniform(0.0, LONGEST_STAY_SECONDS) if leaves else None,
                )
            )
        rng.shuffle(burst)
        yield burst


def schema_of(kind: str, number: int, rng: random.Random) -> dict[str, Any]:
    """Return a schema of that kind that no other number has: engines key compiled grammars by its text.

    Every object is closed, every property required, every string, number and array bounded.
    """
    tagged = {f"id_{number}": {"type": "string", "enum": [f"r{number}", f"s{number}"]}}
    schema = KINDS[kind](tagged, rng)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _integer(rng: random.Random) -> dict[str, Any]:
    low = rng.randrange(-40, 40)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1, 200)}


def _enum(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "enum": rng.sample(WORDS, 3)}


def _pattern(rng: random.Random) -> dict[str, Any]:
    patterns = (
        "^[a-z ]{1,16}$",
        "^[A-Z]{2}-[0-9]{3}$",
        "^(red|green|blue)( (light|dark))?$",
        "^[0-9a-f]{4,8}$",
    )
    return {"type": "string", "pattern": rng.choice(patterns)}


def _nested(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    inner = _closed({"size": _integer(rng), "ok": {"type": "boolean"}})
    return _closed({**tagged, "outer": _closed({"colour": _enum(rng), "inner": inner})})


def _array(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    items = rng.choice((_integer, _enum))(rng)
    fewest = rng.randrange(1, 3)
    return _closed(
        {**tagged, "list": {"type": "array", "items": items, "minItems": fewest, "maxItems": fewest + 2}}
    )


def _objects(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    item = _closed({"name": _enum(rng), "count": _integer(rng)})
    return _closed({**tagged, "items": {"type": "array", "items": item, "minItems": 1, "maxItems": 2}})


def _mixed_enum(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    values: list[Any] = [rng.randrange(1000), rng.choice(WORDS), None, True]
    return _closed({**tagged, "value": {"enum": values}, "fixed": {"const": rng.choice(WORDS)}})


def _patterns(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return _closed({**tagged, "first": _pattern(rng), "second": _pattern(rng)})


def _references(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    place = _closed({"x": _integer(rng), "y": _integer(rng)})
    here = {"$ref": "#/$defs/place"}
    return {**_closed({**tagged, "start": here, "end": here}), "$defs": {"place": place}}


def _union(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    shapes = [
        _closed({"circle": _integer(rng)}),
        _closed({"line": _enum(rng), "long": {"type": "boolean"}}),
        {"type": "null"},
    ]
    return _closed({**tagged, "shape": {"anyOf": shapes}})


def _nullable(tagged: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return _closed({**tagged, "ok": {"type": ["boolean", "null"]}, "count": _integer(rng)})


KINDS = {
    "nested": _nested,
    "array": _array,
    "objects": _objects,
    "mixed enum": _mixed_enum,
    "patterns": _patterns,
    "references": _references,
    "union": _union,
    "nullable": _nullable,
}
