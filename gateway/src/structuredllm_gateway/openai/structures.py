"""The structure that a request asks for, in each of the ways in which it may ask.

Owns the reading of `response_format` (chat and text completions), `text.format` (responses) and vLLM's
`structured_outputs`; the older `guided_*` fields are turned into the latter before (see `openai.legacy`).
Pure: must not import I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from structuredllm_gateway.errors import RequestError, SchemaRejectedError
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.validation import exact_json
from structuredllm_gateway.validation.validators import Schema

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_WRAPPER = frozenset({"name", "description", "schema", "strict"})
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})")


class StructureKind(StrEnum):
    """What a structure constrains; the value is the label of what could not be validated."""

    JSON = "json"  # the text is JSON that satisfies the schema
    REGEX = "regex"  # the text itself matches
    CHOICE = "choice"  # the text itself is one of a list
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"

    @property
    def is_of_text(self) -> bool:
        """Whether the schema is for the text as a string, not for the JSON in it."""
        return self in (StructureKind.REGEX, StructureKind.CHOICE)


@dataclass(frozen=True)
class Structure:
    """The structure a request asks for.

    Attributes:
        schema: what the answer must satisfy: its JSON, or the text as a string (`kind.is_of_text`); None = it
            cannot be validated here (grammar, structural tag): the engine guides it, the gateway only tells
            truncated, empty and abnormal ones, and counts the rest as not validated.
        pointer: JSON pointer in the request body.
        kind: the way in which it was asked for.
    """

    schema: Schema | None
    pointer: str
    kind: StructureKind = StructureKind.JSON


def requested_structure(
    body: Mapping[str, Any], route: Route = Route.CHAT, places: Mapping[str, str] | None = None
) -> Structure | None:
    """Return the structure a request asks for, wherever it asks for it; None when it asks for none.

    Asking twice is allowed when both ask for the same. `places` has, by the field of `structured_outputs`,
    the JSON pointer where the client asked for it when that is elsewhere.

    Raises:
        RequestError: a field has a wrong kind, or two fields ask for different structures.
    """
    if route is Route.RESPONSES:
        asked = [_of_text_format(body.get("text"))]
    else:
        asked = [_of_response_format(body.get("response_format"))]
    asked += _of_structured_outputs(body.get("structured_outputs"), places or {})
    found = [structure for structure in asked if structure is not None]
    for other in found[1:]:
        if other.kind is not found[0].kind or other.schema != found[0].schema or other.schema is None:
            raise RequestError(
                f"The request asks for two different structures, at {found[0].pointer} and at "
                f"{other.pointer}; ask for one.",
                param=other.pointer,
            )
    return found[0] if found else None


def _of_response_format(value: Any) -> Structure | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(ANY_OBJECT, "/response_format")
    if kind == "structural_tag":
        return Structure(None, "/response_format", StructureKind.STRUCTURAL_TAG)
    if kind != "json_schema":
        raise RequestError(
            "`response_format` must be an object whose `type` is text, json_object, json_schema or "
            "structural_tag.",
            param="response_format",
        )
    wrapper = value.get("json_schema")
    found = None
    if isinstance(wrapper, dict):
        found = of_schema(wrapper.get("schema"), "/response_format/json_schema/schema")
    if found is None:
        raise SchemaRejectedError(
            "`response_format` of type json_schema needs a schema in `json_schema.schema`.",
            param="/response_format/json_schema/schema",
        )
    return found


def _of_text_format(text: Any) -> Structure | None:
    """Read the responses API's `text.format`, whose schema lies one level higher than in chat."""
    if text is None:
        return None
    value = text.get("format") if isinstance(text, dict) else text
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(ANY_OBJECT, "/text/format")
    if kind != "json_schema":
        raise RequestError(
            "`text` must be an object whose `format` has a `type` of text, json_object or json_schema.",
            param="text.format",
        )
    found = of_schema(value.get("schema"), "/text/format/schema")
    if found is None:
        raise SchemaRejectedError(
            "`text.format` of type json_schema needs a schema in `schema`.", param="/text/format/schema"
        )
    return found


def _of_structured_outputs(value: Any, places: Mapping[str, str]) -> list[Structure | None]:
    """Read all constraints; vLLM takes one, so more than one are refused by the caller."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise RequestError("`structured_outputs` must be an object.", param="structured_outputs")

    def place(name: str) -> str:
        return places.get(name, f"/structured_outputs/{name}")

    return [
        of_schema(value.get("json"), place("json")),
        Structure(ANY_OBJECT, place("json_object")) if value.get("json_object") else None,
        _of_regex(value.get("regex"), place("regex")),
        _of_choice(value.get("choice"), place("choice")),
        _unvalidated(value.get("grammar"), place("grammar"), StructureKind.GRAMMAR),
        _unvalidated(value.get("structural_tag"), place("structural_tag"), StructureKind.STRUCTURAL_TAG),
    ]


def of_schema(value: Any, pointer: str) -> Structure | None:
    """Read a schema; vLLM takes one as an object or as its JSON text; both are read.

    Raises:
        SchemaRejectedError: it is not JSON, or neither an object nor a boolean.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = exact_json.loads(value)
        except orjson.JSONDecodeError as error:
            raise SchemaRejectedError(
                f"The schema at {pointer} is not JSON: {error}.", param=pointer
            ) from error
    if not isinstance(value, dict | bool):
        raise SchemaRejectedError(
            f"The schema at {pointer} must be a JSON Schema: an object or a boolean.", param=pointer
        )
    if isinstance(value, dict) and isinstance(value.get("schema"), dict) and value.keys() <= _WRAPPER:
        # As a schema it would allow everything: none of its names is a keyword.
        raise SchemaRejectedError(
            f"At {pointer} there is the object around a schema (name, schema, strict); it takes the schema "
            "itself.",
            param=pointer,
        )
    return Structure(value, pointer)


def _of_regex(value: Any, pointer: str) -> Structure | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise SchemaRejectedError(f"The regular expression at {pointer} must be a string.", param=pointer)
    try:
        schema = {"type": "string", "pattern": full_match(value)}
    except ValueError as error:
        raise SchemaRejectedError(
            f"The regular expression at {pointer} is not one: {error}.", param=pointer, code="invalid_regex"
        ) from error
    return Structure(schema, pointer, StructureKind.REGEX)


def _of_choice(value: Any, pointer: str) -> Structure | None:
    if value is None:
        return None
    if not _is_strings(value) or not value:
        raise SchemaRejectedError(f"The choice at {pointer} must be a list of strings.", param=pointer)
    return Structure({"enum": list(dict.fromkeys(value))}, pointer, StructureKind.CHOICE)


def _is_strings(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
    )


def _unvalidated(value: Any, pointer: str, kind: StructureKind) -> Structure | None:
    return None if value is None else Structure(None, pointer, kind)


def full_match(regex: str) -> str:
    r"""Return `regex` so that it must match the whole text, its dot matching any character.

    The engines' grammars are about the whole answer, and xgrammar's dot includes line ends; in the
    linear-time engine it does not, so it is written as a class. Escapes and classes are left as they are.

    Raises:
        ValueError: a quantifier follows a quantifier (`a**`): an error in ECMA-262, which some engines die of
            and others read in different ways.
    """
    parts: list[str] = []
    in_class, at = False, 0
    while at < len(regex):
        one = regex[at]
        if one == "\\":
            parts.append(regex[at : at + 2])
            at += 2
            continue
        quantifier = None if in_class else _QUANTIFIER.match(regex, at)
        if quantifier is not None:
            end = quantifier.end() + regex.startswith("?", quantifier.end())
            if _QUANTIFIER.match(regex, end):
                raise ValueError(f"nothing to repeat at character {end}")
            parts.append(regex[at:end])
            at = end
            continue
        if one == "[" and not in_class:
            in_class = True
        elif one == "]" and in_class:
            in_class = False
        parts.append(r"[\s\S]" if one == "." and not in_class else one)
        at += 1
    return f"^(?:{''.join(parts)})$"
