"""One walk over a JSON Schema: its parts counted against the limits, and the graph of its subschemas.

Owns the knowledge which keyword holds a schema, a list of them, a map of them, or data. Pure: must not import
I/O. The work is linear in the schema's values, never recursive, and stops at the first limit; references are
only noted (`expansion` follows them). A schema that is not well-formed is walked all the same: the compiler
says what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from urllib.parse import unquote

from structuredllm_gateway.admission.body_shape import walk
from structuredllm_gateway.admission.keywords import unenforced_in
from structuredllm_gateway.admission.patterns import CAP, measure
from structuredllm_gateway.admission.rules import Limits, pointer_part, refuse


class _Kind(IntEnum):
    """How a value is read."""

    SCHEMA = 0
    MAP = 1  # names to schemas
    LIST = 2  # schemas
    DATA = 3
    ENUM = 4  # data whose strings become part of a grammar


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PLAIN = frozenset(
    {"type", "title", "description", "format", "$comment", "deprecated", "readOnly", "writeOnly"}
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMES = frozenset({"properties", "$defs", "definitions"})
_BRANCHES = frozenset({"anyOf", "oneOf", "allOf"})
_DATA = frozenset({"default", "examples", "required", "dependentRequired", "type", "enum", "const"})
_OF_ARRAY = frozenset({"items", "additionalItems", "contains", "unevaluatedItems"})
_OF_OBJECT = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
)


@dataclass
class Node:
    """One subschema in the graph.

    Attributes:
        parent: the value that holds it, as (parent, name); None = the schema itself.
        edges: subschemas inside it, each with how often it may be repeated in one answer.
        references: what its `$ref` and `$dynamicRef` say.
        length: largest bound of its own text, or of an array or object without a schema for its parts.
        leaves: subschemas inside it that are not nodes of their own, as they say no more than a type.
    """

    parent: Any
    edges: list[tuple[Node, int]] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    length: int = 1
    leaves: int = 0


@dataclass
class Survey:
    """What the walk found.

    Attributes:
        root: the graph's root.
        by_identity: subschemas by `id()` of their dict; valid while the schema itself is kept.
        anchors: what `$anchor`, `$dynamicAnchor` and `$id` name.
        unenforced: keywords that a backend is known not to enforce, each with its first pointer.
        visited: values looked at, for tests of the bound on the work.
    """

    root: Node
    by_identity: dict[int, Node] = field(default_factory=dict)
    anchors: dict[str, Node] = field(default_factory=dict)
    unenforced: dict[str, str] = field(default_factory=dict)
    visited: int = 0


class _Counts:
    __slots__ = ("branches", "enum_chars", "enum_values", "pattern_parts", "properties", "string_chars")

    def __init__(self) -> None:
        self.properties = self.enum_values = self.enum_chars = self.string_chars = self.branches = 0
        self.pattern_parts = 0


def survey(schema: dict[str, Any], pointer: str, limits: Limits) -> Survey:
    """Walk `schema`, which stands at `pointer` in the request body.

    Raises:
        SchemaRejectedError: a count is above its limit.
    """
    codes = ("schema_too_deep", "schema_too_large")
    walk(schema, limits.max_schema_depth, limits.max_schema_nodes, codes, pointer)
    root = Node(None)
    found = Survey(root)
    targets = _referenced(schema)
    counts = _Counts()
    pending: list[tuple[Any, _Kind, Any, Node, int]] = [(schema, _Kind.SCHEMA, None, root, 1)]
    while pending:
        value, kind, place, holder, factor = pending.pop()
        found.visited += 1
        if kind >= _Kind.DATA and isinstance(value, dict) and id(value) in targets:
            kind = _Kind.SCHEMA  # data that a reference uses as a schema
        if kind is _Kind.SCHEMA and isinstance(value, dict):
            if place is not None and _is_plain(value) and id(value) not in targets:
                holder.leaves += 1
                holder.length = max(holder.length, factor)
                continue
            node = root if place is None else Node(place)
            if place is not None:
                holder.edges.append((node, factor))
            found.by_identity[id(value)] = node
            _count_schema(value, place, counts, limits, pointer)
            _note(value, place, node, found)
            pending.extend(_children(value, place, node))
        elif kind is _Kind.MAP and isinstance(value, dict):
            if id(value) in targets:
                # A reference names the map itself: then it stands for all of its schemas.
                node = Node(place)
                holder.edges.append((node, factor))
                found.by_identity[id(value)] = holder = node
            pending.extend(
                (child, _Kind.SCHEMA, (place, name), holder, factor) for name, child in value.items()
            )
        elif isinstance(value, list):
            inner = _Kind.SCHEMA if kind in (_Kind.LIST, _Kind.SCHEMA) else kind
            pending.extend((child, inner, (place, i), holder, factor) for i, child in enumerate(value))
        elif isinstance(value, dict):
            pending.extend((child, kind, (place, name), holder, factor) for name, child in value.items())
        elif kind is _Kind.ENUM and isinstance(value, str):
            counts.enum_chars += len(value)
            counts.string_chars += len(value)
            _check(counts.enum_chars, limits.max_enum_chars, "schema_enum_too_long", pointer, place)
            _check(counts.string_chars, limits.max_string_chars, "schema_strings_too_long", pointer, place)
    return found


def place_pointer(pointer: str, place: Any) -> str:
    """Write the pointer of a place in a schema that stands at `pointer`."""
    parts: list[str] = []
    while place is not None:
        place, name = place
        parts.append(pointer_part(name))
    return pointer + "".join(reversed(parts))


def resolve(found: Survey, schema: dict[str, Any], reference: str) -> Node | None:
    """Return the subschema that a reference names; None = none in the schema (the compiler refuses it)."""
    base, _, fragment = reference.partition("#")
    if base:
        anchor = found.anchors.get(base)
        if anchor is not None or fragment.startswith("/"):
            return anchor
        return found.anchors.get("#" + fragment) if fragment else None
    if not fragment:
        return found.root
    if not fragment.startswith("/"):
        return found.anchors.get("#" + fragment)
    target = _pointed(schema, fragment)
    return found.by_identity.get(id(target)) if isinstance(target, dict) else None


def _is_plain(value: dict[str, Any]) -> bool:
    """Whether a subschema is only a type, as most are: nothing in it to look at."""
    return value.keys() <= _PLAIN and all(isinstance(item, str) for item in value.values())


def _children(value: dict[str, Any], place: Any, node: Node) -> list[tuple[Any, _Kind, Any, Node, int]]:
    per_array = max(1, _bound(value, "minItems", "maxItems"))
    per_object = max(1, _bound(value, "minProperties", "maxProperties"))
    children: list[tuple[Any, _Kind, Any, Node, int]] = []
    for name, child in value.items():
        if not isinstance(child, dict | list | str):
            continue
        factor = per_array if name in _OF_ARRAY else per_object if name in _OF_OBJECT else 1
        kind = _Kind.SCHEMA
        if name in _MAPS:
            kind = _Kind.MAP
        elif name in _BRANCHES or name == "prefixItems":
            kind = _Kind.LIST
        elif name in ("enum", "const"):
            kind = _Kind.ENUM
        elif name in _DATA or isinstance(child, str):
            kind = _Kind.DATA
        if kind is not _Kind.DATA or not isinstance(child, str):
            # A definition is part of what grows only where a reference names it.
            holder = Node(None) if name in _DEFINITIONS else node
            children.append((child, kind, (place, name), holder, factor))
    return children


def _count_schema(value: dict[str, Any], place: Any, counts: _Counts, limits: Limits, pointer: str) -> None:
    for name, child in value.items():
        if isinstance(child, dict):
            if name in _NAMES:
                counts.string_chars += sum(map(len, child))
                here = (place, name)
                _check(counts.string_chars, limits.max_string_chars, "schema_strings_too_long", pointer, here)
            if name in ("properties", "patternProperties"):
                counts.properties += len(child)
                here = (place, name)
                _check(counts.properties, limits.max_properties, "schema_too_many_properties", pointer, here)
            if name == "patternProperties":
                for pattern in child:
                    _check_pattern(pattern, counts, limits, pointer, (place, name))
        elif isinstance(child, list):
            here = (place, name)
            if name == "enum":
                counts.enum_values += len(child)
                _check(
                    counts.enum_values, limits.max_enum_values, "schema_too_many_enum_values", pointer, here
                )
            elif name in _BRANCHES:
                counts.branches += len(child)
                _check(counts.branches, limits.max_branches, "schema_too_many_branches", pointer, here)
        elif name == "pattern" and isinstance(child, str):
            _check_pattern(child, counts, limits, pointer, (place, name))


def _check_pattern(pattern: str, counts: _Counts, limits: Limits, pointer: str, place: Any) -> None:
    _check(len(pattern), limits.max_pattern_chars, "pattern_too_long", pointer, place)
    facts = measure(pattern)
    _check(facts.depth, limits.max_pattern_depth, "pattern_too_deep", pointer, place)
    _check(facts.expansion, limits.max_pattern_expansion, "pattern_expands_too_far", pointer, place)
    counts.pattern_parts += facts.expansion
    _check(counts.pattern_parts, limits.max_patterns_expansion, "patterns_expand_too_far", pointer, place)


def _note(value: dict[str, Any], place: Any, node: Node, found: Survey) -> None:
    """Keep what later steps need of one subschema: references, anchors, own length, unenforced keywords."""
    for name in ("$ref", "$dynamicRef"):
        if isinstance(reference := value.get(name), str):
            node.references.append(reference)
    for name, prefix in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", "")):
        if isinstance(named := value.get(name), str):
            found.anchors[prefix + named] = node
    node.length = max(
        node.length,
        _bound(value, "minLength", "maxLength"),
        0 if "items" in value else _bound(value, "minItems", "maxItems"),
        _bound(value, "minProperties", "maxProperties"),
    )
    for keyword in unenforced_in(value):
        if keyword not in found.unenforced:
            found.unenforced[keyword] = place_pointer("", place)


def _bound(value: dict[str, Any], least: str, most: str) -> int:
    return max(_count(value.get(least)), _count(value.get(most)))


def _count(value: Any) -> int:
    """Read a bound; JSON Schema also takes 3.0 for 3."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return 0
    return int(min(value, CAP))


def _check(count: int, limit: int, code: str, pointer: str, place: Any) -> None:
    if count > limit:
        refuse(code, place_pointer(pointer, place), limit)


def _referenced(schema: dict[str, Any]) -> set[int]:
    """Return the identities of all dicts that a local pointer anywhere in the schema names."""
    targets: set[int] = set()
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(item for item in value if isinstance(item, dict | list))
            continue
        for name in ("$ref", "$dynamicRef"):
            reference = value.get(name)
            if isinstance(reference, str) and reference.startswith("#/"):
                targets.add(id(_pointed(schema, reference[1:])))
        pending.extend(item for item in value.values() if isinstance(item, dict | list))
    return targets


def _pointed(schema: Any, fragment: str) -> Any:
    value = schema
    for part in unquote(fragment).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) <= 9:
            if int(name) >= len(value):
                return None
            value = value[int(name)]
        else:
            return None
    return value
