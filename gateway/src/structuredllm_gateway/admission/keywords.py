"""Keywords that a grammar backend lets pass without enforcing them.

Owns the knowledge per backend; pure, must not import I/O. xgrammar 0.2.8 was measured against the meaning of
draft 2020-12, behind vLLM 0.32's own gate (`has_xgrammar_unsupported_json_features`): what that gate stops is
refused by the engine (backend xgrammar) or given to guidance (backend auto) and is not listed. The gate looks
only where a `type` is stated (vLLM issue 57550). llguidance 1.7.6 refuses to compile what it does
not enforce, so for it nothing is listed. Not listed either: that branches of `oneOf` exclude each other, and
calendar rules of `format`; only the validation sees those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from structuredllm_gateway.upstream.endpoints import GrammarBackend

_IGNORED = ("not", "if", "dependentRequired", "dependentSchemas", "$dynamicRef")
_ANNOTATIONS = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$dynamicAnchor", "$vocabulary"),
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "type"),
    }
)
# What vLLM's gate stops only beside the type: without one it passes, and is not enforced.
_NEEDS_TYPE: Mapping[str, frozenset[str]] = {
    "uniqueItems": frozenset({"array"}),
    "contains": frozenset({"array"}),
    "multipleOf": frozenset({"integer", "number"}),
}

UNENFORCED: Mapping[GrammarBackend, str] = {
    GrammarBackend.XGRAMMAR: "lets the keywords below pass",
    GrammarBackend.AUTO: "as xgrammar, which vLLM tries first",
    GrammarBackend.GUIDANCE: "",
}
"""Backends that let keywords pass; "" = none known."""

DESCRIPTIONS: Mapping[str, str] = {
    "not": "ignored",
    "if": "ignored, with `then` and `else`",
    "dependentRequired": "ignored",
    "dependentSchemas": "ignored",
    "$dynamicRef": "unknown to it",
    "$ref": "what stands beside it is ignored; an anchor is not followed",
    "anyOf": "what stands beside it is ignored",
    "required": "a name that `properties` lacks is not required where `additionalProperties` is false",
    "uniqueItems": "ignored when `type` does not say array",
    "contains": "ignored when `type` does not say array",
    "multipleOf": "ignored when `type` does not say integer or number",
    "propertyNames": "ignored beside other keywords on names when `type` does not say object",
    "patternProperties": "ignored beside other keywords on names when `type` does not say object",
    "minLength": "ignored beside `pattern` or `format` when `type` does not say string",
    "maxLength": "ignored beside `pattern` or `format` when `type` does not say string",
}
"""What is known of each name that `unenforced_in` may give, for xgrammar 0.2.8."""


def is_trusting(backends: frozenset[GrammarBackend]) -> bool:
    """Whether any of a model's backends lets keywords pass."""
    return any(UNENFORCED[backend] for backend in backends)


def unenforced_in(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keywords of one subschema (not of those inside it) that xgrammar lets pass."""
    for name in _IGNORED:
        if name in schema:
            yield name
    reference = schema.get("$ref")
    if isinstance(reference, str):
        followed = reference == "#" or reference.startswith("#/")
        if not followed or any(name != "$ref" and name not in _ANNOTATIONS for name in schema):
            yield "$ref"
    if "anyOf" in schema and any(name != "anyOf" and name not in _ANNOTATIONS for name in schema):
        yield "anyOf"
    yield from _without_type(schema)
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        required, known = schema.get("required"), schema.get("properties", {})
        if not isinstance(required, list) or not isinstance(known, dict):
            return
        if any(isinstance(name, str) and name not in known for name in required):
            yield "required"


def _without_type(schema: Mapping[str, Any]) -> Iterator[str]:
    stated = schema.get("type")
    types = frozenset([stated] if isinstance(stated, str) else ())
    if isinstance(stated, list):
        types = frozenset(item for item in stated if isinstance(item, str))
    for name, needed in _NEEDS_TYPE.items():
        if name in schema and schema[name] is not False and not types & needed:
            yield name
    if "object" not in types:
        patterns = schema.get("patternProperties")
        several = isinstance(patterns, dict) and len(patterns) > 1
        if patterns is not None and ("properties" in schema or several):
            yield "patternProperties"
        if "propertyNames" in schema and ("properties" in schema or patterns is not None):
            yield "propertyNames"
    if "string" not in types and ("pattern" in schema or "format" in schema):
        for name in ("minLength", "maxLength"):
            if name in schema:
                yield name
