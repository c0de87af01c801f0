"""Constraints that have taken engines down, hung them or made them refuse others: what each must end with.

Kinds K8 and K9 of the collected public failures (crash, hang or denial of service at compilation; one bad
request that harms all).
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

OK = "ok"
"""The request is answered."""

FAILED = "grammar_compile_failed"
TIMEOUT = "grammar_compile_timeout"
MEMORY = "grammar_compile_memory"
UNSUPPORTED = "grammar_unsupported"
DEAD_END = "grammar_dead_end"
BAD_REQUEST = "BadRequestError"
"""Refused by vLLM's own reading of the request, before a grammar is looked at."""

BOMB = (TIMEOUT, MEMORY)


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: words for it.
        body: what it adds to a chat completion.
        ends: the ways in which it may end; anything else is wrong.
    """

    name: str
    body: dict[str, Any] = field(repr=False)
    ends: tuple[str, ...]


def to_json(value: Any) -> str:
    """Return JSON, also of what is nested deeper than Python usually goes."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return json.dumps(value)
    finally:
        sys.setrecursionlimit(limit)


def pattern_bomb(number: int) -> str:
    """Return a pattern of 30 characters that takes minutes to parse, another one for each number."""
    return f"^([a-z]{{0,{10_000 + number}}}){{0,100}}$"


def bombs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return constraints that do not compile in time, all different, of several kinds."""
    return [_bomb(number) for number in range(seed, seed + count)]


def _bomb(number: int) -> dict[str, Any]:
    exploding = {"type": "string", "pattern": pattern_bomb(number)}
    kinds: tuple[dict[str, Any], ...] = (
        {"json": exploding},
        {"json": optional_properties(2_500, f"p{number}x")},
        {"structural_tag": json.dumps(tag(exploding))},
        {"json": {"enum": [f"value {number} {n * 7919 % 20_011}" for n in range(20_000)]}},
        {"json": {"type": "array", "items": exploding}},
    )
    return kinds[number % len(kinds)]


def optional_properties(count: int, word: str) -> dict[str, Any]:
    """Return an object of which everything may be missing."""
    return {"type": "object", "properties": {f"{word}{n}": {"type": "string"} for n in range(count)}}


def many_rules(count: int, word: str = "a") -> str:
    """Return EBNF of a chain of rules."""
    rules = "\n".join(f'r{n} ::= "{word}{n}" r{n + 1} | "b"' for n in range(count))
    return f'root ::= r0\n{rules}\nr{count} ::= "z"'


def tag(schema: Any) -> dict[str, Any]:
    """Return a structural tag with a JSON schema in it."""
    return {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f="],
            "tags": [
                {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
            ],
        },
    }


def nested(depth: int, key: str = "items") -> dict[str, Any]:
    """Return a schema of arrays in arrays."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", key: schema}
    return schema


def one_ofs(depth: int) -> dict[str, Any]:
    """Return alternatives within alternatives; the text doubles with each level."""
    schema: dict[str, Any] = {"type": "string"}
    for n in range(depth):
        schema = {
            "oneOf": [schema, {"type": "object", "properties": {f"k{n}": schema}, "required": [f"k{n}"]}]
        }
    return schema


def referenced(levels: int, times: int) -> dict[str, Any]:
    """Return a schema that is `times` to the power of `levels` schemas with its references written out."""
    names = [f"p{n}" for n in range(times)]
    found: dict[str, Any] = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in names},
            "required": names,
        }
        for level in range(levels)
    }
    found[f"d{levels}"] = {"type": "string"}
    return {"$defs": found, "$ref": "#/$defs/d0"}


def _json(name: str, schema: Any, *ends: str) -> Case:
    return Case(name, {"structured_outputs": {"json": schema}}, ends)


def _regex(name: str, regex: Any, *ends: str) -> Case:
    return Case(name, {"structured_outputs": {"regex": regex}}, ends)


def _grammar(name: str, grammar: Any, *ends: str) -> Case:
    return Case(name, {"structured_outputs": {"grammar": grammar}}, ends)


def _other(name: str, constraint: dict[str, Any], *ends: str) -> Case:
    return Case(name, {"structured_outputs": constraint}, ends)


def _tool(name: str, parameters: Any, *ends: str) -> Case:
    function = {"name": "f", "parameters": parameters}
    choice = {"type": "function", "function": {"name": "f"}}
    return Case(name, {"tools": [{"type": "function", "function": function}], "tool_choice": choice}, ends)


def _format(name: str, schema: Any, *ends: str) -> Case:
    body = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return Case(name, {"response_format": body}, ends)


_CYCLE = {
    "$ref": "#/$defs/list",
    "$defs": {
        "list": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}},
    },
}
_MUTUAL = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
_SLOW = "((([a-z]{0,20}){0,20}){0,20}){0,20}"
"""Compiles at once, and takes seconds for each token."""

_BAD_PATTERN = {"type": "string", "pattern": "a**"}
_REFUSED = (FAILED, BAD_REQUEST, UNSUPPORTED)

CASES = (
    _regex("invalid regex", "foo**", FAILED),
    _regex("nested quantifiers", "(a+)+b", OK),
    _regex("regex with NUL", "a\x00b", *_REFUSED),
    _regex("empty regex", "", OK, *_REFUSED),
    _regex("unbalanced regex", "((a|b", FAILED),
    _regex("30,000 brackets in a regex", "(" * 30_000 + "a" + ")" * 30_000, FAILED),
    _regex("lookbehind", "(?<=a)b", *_REFUSED),
    _regex("repetitions of repetitions", _SLOW, *BOMB),
    _regex("lone surrogate in a regex", "a\ud800b", OK, *_REFUSED),
    Case(
        "slow after a long start",
        {"structured_outputs": {"regex": "x{100}" + _SLOW}, "max_tokens": 300},
        (OK, DEAD_END, *BOMB),
    ),
    _regex("a long alternation", "|".join(f"word{n}[a-z]*" for n in range(4_000)), OK, *BOMB),
    _json("reference to itself", {"$ref": "#"}, OK, DEAD_END, *_REFUSED),
    _json("references in a circle", _MUTUAL, OK, DEAD_END, *BOMB, *_REFUSED),
    _json("array, object, array", _CYCLE, OK),
    _json("items refer to the root", {"items": {"$ref": "#"}}, OK),
    _json("reference to nothing", {"$ref": "#/$defs/nothing"}, *_REFUSED),
    _json("reference elsewhere", {"$ref": "https://example.com/schema.json"}, OK, *_REFUSED),
    _json("10,000 strings", {"enum": [f"value {n * 7919 % 10_007}" for n in range(10_000)]}, OK, *BOMB),
    _json("60,000 strings", {"enum": [f"value {n * 7919 % 60_013}" for n in range(60_000)]}, *BOMB),
    _json("nested oneOf", one_ofs(8), OK, *BOMB),
    _json("deeply nested oneOf", one_ofs(11), OK, *BOMB),
    _json("a long string", {"type": "string", "maxLength": 1_000_000}, OK, *BOMB),
    _json("length without end", {"type": "string", "maxLength": 10**18}, OK, *BOMB, *_REFUSED),
    _json("pattern that explodes", {"type": "string", "pattern": pattern_bomb(-1)}, *BOMB),
    _json("100,000 items", {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}, OK, *BOMB),
    _json("1,000 levels", nested(1_000), *_REFUSED),
    _json("1,000 levels as text", to_json(nested(1_000)), *_REFUSED),
    _json("100,000 brackets as text", "[" * 100_000, *_REFUSED),
    _json("2^20 references", referenced(20, 2), OK, *BOMB),
    _json("10^6 references", referenced(6, 10), OK, *BOMB),
    _json("3,000 properties", optional_properties(3_000, "p"), OK, *BOMB),
    _json("no JSON", "{", *_REFUSED),
    _json("empty text", "", *_REFUSED),
    _json("true", "true", OK, *_REFUSED),
    _json("a number", "42", *_REFUSED),
    _json("unknown type", {"type": "nothing"}, *_REFUSED),
    _json("type of a wrong type", {"type": 7}, *_REFUSED),
    _json("properties of a wrong type", {"type": "object", "properties": [1, 2]}, *_REFUSED),
    _json("invalid pattern", {"type": "string", "pattern": "foo**"}, OK, *_REFUSED),
    _json("nothing is allowed", {"type": "integer", "minimum": 5, "maximum": 3}, DEAD_END, *_REFUSED),
    _json("keyword that is not enforced", {"type": "array", "uniqueItems": True}, UNSUPPORTED),
    _grammar("40,000 rules", many_rules(40_000), OK, *BOMB),
    _grammar("30,000 brackets", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, FAILED),
    _grammar("left recursion", 'root ::= root "a" | "b"', OK, *_REFUSED),
    _grammar("endless recursion", "root ::= root", OK, DEAD_END, *_REFUSED),
    _grammar("unknown rule", "root ::= missing", FAILED),
    _grammar("no root", 'other ::= "a"', FAILED),
    _grammar("half EBNF, half Lark", "start: 'a' ::= b", *_REFUSED),
    _grammar("Lark that is none", "start: (", *_REFUSED),
    _grammar("Lark", 'start: "a" /[b-d]{1,3}/', OK),
    _grammar("blank grammar", "  \n", *_REFUSED),
    _grammar("repetitions in EBNF", 'root ::= (("a" | "b" [c-z]*){0,50000} "x"){0,50000}', OK, *BOMB),
    _grammar("NUL in EBNF", 'root ::= "a\x00b"', OK, *_REFUSED),
    _other("choice with a newline", {"choice": ["yes", "no\nplease"]}, OK),
    _other("choice with NUL", {"choice": ["yes", "no\x00please"]}, OK, *_REFUSED),
    _other("no choice", {"choice": []}, *_REFUSED),
    _other("100,000 choices", {"choice": [f"choice {n}" for n in range(100_000)]}, OK, *BOMB),
    _other("no object", {"json_object": False}, *_REFUSED),
    _other("two constraints", {"regex": "a", "choice": ["b"]}, *_REFUSED),
    _other("tag without a format", {"structural_tag": "{}"}, *_REFUSED),
    _other("tag that is no JSON", {"structural_tag": "{"}, *_REFUSED),
    _other("tag that explodes", {"structural_tag": json.dumps(tag(bombs(1, 5)[0]["json"]))}, *BOMB),
    _tool("tool with an unknown type", {"type": "nothing"}, *_REFUSED),
    _tool("tool with an invalid pattern", {"properties": {"a": _BAD_PATTERN}}, OK, *_REFUSED),
    _tool("tool that explodes", {"properties": {"a": bombs(1, 10)[0]["json"]}}, *BOMB, BAD_REQUEST),
    _format("response format with an invalid pattern", {"type": "string", "pattern": "foo**"}, OK, *_REFUSED),
    _format("response format that explodes", bombs(1, 15)[0]["json"], *BOMB),
)  # fmt: skip
