"""The rules of admission: what is refused before any engine is asked, each with its code and its bound.

Owns the vocabulary (codes, limits) that the checks share and that the reference page is made from. Pure:
must not import I/O. A refusal is always a 400 whose `code` is a rule's code and whose `param` is a JSON
pointer into the request body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from structuredllm_gateway.errors import RequestError, SchemaRejectedError


@dataclass(frozen=True)
class Limits:
    """The bounds, by the names of their settings (`admission.*`, which describes each)."""

    max_body_depth: int
    max_body_nodes: int
    max_choices: int
    max_tools: int
    max_schema_depth: int
    max_schema_nodes: int
    max_properties: int
    max_enum_values: int
    max_enum_chars: int
    max_string_chars: int
    max_branches: int
    max_expanded_nodes: int
    max_repetitions: int
    max_pattern_chars: int
    max_pattern_depth: int
    max_pattern_expansion: int
    max_patterns_expansion: int
    max_regex_chars: int
    max_grammar_chars: int
    max_grammar_depth: int
    refused_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: `error.code` of its refusal.
        setting: name of its bound in `Limits` and in the settings group `admission`.
        what: what is counted, for a reader.
        openai: what OpenAI documents for the same thing, "" when nothing.
        about_schema: whether its refusal counts as schema_rejected (else request_rejected).
    """

    code: str
    setting: str
    what: str
    openai: str = ""
    about_schema: bool = True


RULES: tuple[Rule, ...] = (
    Rule("request_too_deep", "max_body_depth", "nesting of JSON containers in the body", "", False),
    Rule(
        "request_too_many_values",
        "max_body_nodes",
        "values in the body; an object or a list counts as ten",
        "",
        False,
    ),
    Rule("too_many_choices", "max_choices", "`n` and `best_of`", "128 (`n`)", False),
    Rule("too_many_tools", "max_tools", "entries of `tools` (or `functions`)", "128", False),
    Rule("field_refused", "refused_fields", "fields that no client may set", "", False),
    Rule("schema_too_deep", "max_schema_depth", "nesting of JSON containers in one schema", "10 levels"),
    Rule("schema_too_large", "max_schema_nodes", "values in one schema"),
    Rule(
        "schema_too_many_properties",
        "max_properties",
        "names in all `properties` and `patternProperties` of one schema",
        "5,000",
    ),
    Rule(
        "schema_too_many_enum_values",
        "max_enum_values",
        "values in all `enum`s of one schema, or in one `choice`",
        "1,000",
    ),
    Rule(
        "schema_enum_too_long",
        "max_enum_chars",
        "characters of all strings in `enum` and `const`, or in one `choice`",
        "15,000 in an enum of more than 250 strings",
    ),
    Rule(
        "schema_strings_too_long",
        "max_string_chars",
        "characters of all property and definition names and of the strings in `enum` and `const`",
        "120,000",
    ),
    Rule("schema_too_many_branches", "max_branches", "branches of all `anyOf`, `oneOf` and `allOf`"),
    Rule(
        "schema_expands_too_far",
        "max_expanded_nodes",
        "subschemas when every `$ref` is replaced by what it names (a cycle counts once)",
    ),
    Rule(
        "schema_repeats_too_often",
        "max_repetitions",
        "product of the nested upper bounds: `maxItems`, `minItems`, `maxProperties`, `minProperties`, "
        "`maxLength`, `minLength`",
    ),
    Rule("pattern_too_long", "max_pattern_chars", "characters of one `pattern` or `patternProperties` name"),
    Rule("pattern_too_deep", "max_pattern_depth", "nested groups of one pattern or `regex`"),
    Rule(
        "pattern_expands_too_far",
        "max_pattern_expansion",
        "parts of one pattern, `regex` or grammar when every `{n,m}` is written out",
    ),
    Rule(
        "patterns_expand_too_far",
        "max_patterns_expansion",
        "parts of all patterns of one schema together, likewise",
    ),
    Rule("regex_too_long", "max_regex_chars", "characters of a `regex` that is asked for"),
    Rule("grammar_too_long", "max_grammar_chars", "characters of a `grammar` that is asked for"),
    Rule("grammar_too_deep", "max_grammar_depth", "nested brackets of a `grammar` that is asked for"),
)
"""Every rule, in the order in which they are looked at."""

_BY_CODE = {rule.code: rule for rule in RULES}


def refuse(code: str, pointer: str, limit: int) -> NoReturn:
    """Refuse the request: `code`'s count is above `limit` at `pointer`.

    Raises:
        RequestError: always; for a rule about schemas a SchemaRejectedError.
    """
    rule = _BY_CODE[code]
    error = SchemaRejectedError if rule.about_schema else RequestError
    raise error(
        f"The request at {pointer or 'its root'} is above a limit of this gateway: {rule.what}: "
        f"at most {limit}. Ask for less, or raise admission.{rule.setting}.",
        param=pointer,
        code=code,
    )


def refuse_field(pointer: str) -> NoReturn:
    """Refuse a field that no client may set.

    Raises:
        RequestError: always.
    """
    raise RequestError(
        f"The field {pointer} may not be set by clients of this gateway; leave it out.",
        param=pointer,
        code="field_refused",
    )


def pointer_part(name: str | int) -> str:
    """Write one step of a JSON pointer (RFC 6901), at most 256 characters of it."""
    if isinstance(name, int):
        return f"/{name}"
    return "/" + name[:256].replace("~", "~0").replace("/", "~1")
