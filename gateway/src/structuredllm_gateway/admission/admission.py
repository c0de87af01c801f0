"""Admission: whether a request may go to an engine, decided from its body alone.

Owns the order of the checks and the memory of parts that passed, so that a schema that comes again costs one
hash. Pure: must not import I/O. Raises nothing but refusals, and its work is linear in the body.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from structuredllm_gateway.admission.body_shape import check_body, walk
from structuredllm_gateway.admission.expansion import check_expansion
from structuredllm_gateway.admission.keywords import DESCRIPTIONS
from structuredllm_gateway.admission.patterns import measure
from structuredllm_gateway.admission.requested import Part, PartKind, parts_of, parts_of_tag
from structuredllm_gateway.admission.rules import Limits, refuse, refuse_field
from structuredllm_gateway.admission.schema_survey import survey
from structuredllm_gateway.errors import SchemaRejectedError

# Fields whose number counts choices, or whose length counts tools.
_COUNTED = frozenset({"n", "best_of", "tools", "functions"})


@dataclass(frozen=True)
class Unenforced:
    """A keyword that a trusting backend does not enforce, and where it first stands in the body."""

    keyword: str
    pointer: str


class Admission:
    """Checks request bodies. Not for threads."""

    def __init__(self, limits: Limits, remembered: int) -> None:
        """Start with an empty memory of at most `remembered` parts."""
        self._limits = limits
        self._remembered = remembered
        self._passed: OrderedDict[bytes, tuple[tuple[str, str], ...]] = OrderedDict()
        paths = (tuple(field.strip("/").split("/")) for field in limits.refused_fields)
        self._refused_fields: dict[str, list[tuple[str, ...]]] = {}
        for first, *rest in paths:
            self._refused_fields.setdefault(first, []).append(tuple(rest))

    @property
    def read_fields(self) -> Iterable[str]:
        """Fields that are looked at because a setting says so."""
        return self._refused_fields

    def check_shape(self, body: bytes, whole: Mapping[str, Any]) -> None:
        """Check what depends on all of a body: of one whose other fields are known to pass.

        Raises:
            RequestError: see `check`.
        """
        check_body(body, whole, self._limits)

    def check(self, body: bytes, whole: Mapping[str, Any]) -> tuple[Unenforced, ...]:
        """Check one body.

        Args:
            body: as received.
            whole: the JSON object that it is.

        Returns:
            Keywords in its schemas that xgrammar is known not to enforce.

        Raises:
            RequestError: it may not pass; `code` names the rule, `param` is a JSON pointer into the body.
        """
        limits = self._limits
        check_body(body, whole, limits)
        self._check_fields(whole)
        found: tuple[Unenforced, ...] = ()
        for part in parts_of(whole):
            if part.kind is PartKind.SCHEMA:
                found += self._check_schema(part.value, part.pointer)
            else:
                found += self._check_part(part)
        return found

    def _check_fields(self, whole: Mapping[str, Any]) -> None:
        limits = self._limits
        for name in whole:
            if name in _COUNTED:
                value = whole[name]
                if isinstance(value, int | float) and value > limits.max_choices:
                    refuse("too_many_choices", f"/{name}", limits.max_choices)
                if isinstance(value, list) and len(value) > limits.max_tools:
                    refuse("too_many_tools", f"/{name}", limits.max_tools)
            elif name in self._refused_fields:
                for rest in self._refused_fields[name]:
                    value = whole[name]
                    for step in rest:
                        value = value.get(step) if isinstance(value, dict) else None
                    if value is not None:
                        refuse_field("/" + "/".join((name, *rest)))

    def _check_part(self, part: Part) -> tuple[Unenforced, ...]:
        limits, value = self._limits, part.value
        if part.kind is PartKind.REGEX:
            _check_text(value, part.pointer, limits, "regex_too_long", limits.max_regex_chars)
            return ()
        if part.kind is PartKind.GRAMMAR:
            _check_grammar(value, part.pointer, limits)
            return ()
        if part.kind is PartKind.CHOICE:
            _check_choice(value, part.pointer, limits)
            return ()
        if part.kind is PartKind.TAG:
            codes = ("schema_too_deep", "schema_too_large")
            walk(value, limits.max_schema_depth, limits.max_schema_nodes, codes, part.pointer)
            found: tuple[Unenforced, ...] = ()
            for inner in parts_of_tag(value, part.pointer):
                found += self._check_part(inner)
            return found
        return self._check_schema(value, part.pointer)

    def _check_schema(self, schema: dict[str, Any], pointer: str) -> tuple[Unenforced, ...]:
        key = _key(schema)
        known = self._passed.get(key) if key is not None else None
        if known is None:
            survey_ = survey(schema, pointer, self._limits)
            check_expansion(survey_, schema, pointer, self._limits)
            known = tuple(survey_.unenforced.items())
            if key is not None:
                self._passed[key] = known
                while len(self._passed) > self._remembered:
                    self._passed.popitem(last=False)
        elif key is not None:
            self._passed.move_to_end(key)
        return tuple(Unenforced(keyword, pointer + place) for keyword, place in known) if known else ()


def judge_unenforced(found: Iterable[Unenforced], policy: str) -> tuple[str, ...]:
    """Decide on keywords that the model's grammar backend does not enforce.

    Args:
        found: what `Admission.check` gave.
        policy: warn, reject or validate (the setting `validation.unenforced_keywords`).

    Returns:
        One warning for the client, or none.

    Raises:
        SchemaRejectedError: policy reject; `param` is where the first of them stands.
    """
    keywords = {item.keyword: item.pointer for item in found}
    if not keywords or policy == "validate":
        return ()
    if policy == "reject":
        keyword, pointer = next(iter(keywords.items()))
        raise SchemaRejectedError(
            f"The grammar backend of this model does not enforce {keyword!r} as it is used at {pointer} "
            f"({DESCRIPTIONS[keyword]}), and this gateway refuses such schemas.",
            param=pointer,
            code="keyword_not_enforced",
        )
    names = ", ".join(sorted(keywords))
    return (f"the grammar backend does not enforce: {names}; the answer may violate them",)


def _key(schema: dict[str, Any]) -> bytes | None:
    """Return the schema's hash; None when it is nested too deep to be written (it is refused then)."""
    try:
        return hashlib.sha256(orjson.dumps(schema)).digest()
    except (TypeError, RecursionError):
        return None


def _check_text(text: str, pointer: str, limits: Limits, code: str, longest: int) -> None:
    if len(text) > longest:
        refuse(code, pointer, longest)
    facts = measure(text)
    if facts.depth > limits.max_pattern_depth:
        refuse("pattern_too_deep", pointer, limits.max_pattern_depth)
    if facts.expansion > limits.max_pattern_expansion:
        refuse("pattern_expands_too_far", pointer, limits.max_pattern_expansion)


def _check_grammar(text: str, pointer: str, limits: Limits) -> None:
    if len(text) > limits.max_grammar_chars:
        refuse("grammar_too_long", pointer, limits.max_grammar_chars)
    facts = measure(text, quoted=True)
    if facts.depth > limits.max_grammar_depth:
        refuse("grammar_too_deep", pointer, limits.max_grammar_depth)
    # Its own letters are parts too, so the bound of a pattern would be one on length here.
    if facts.expansion > max(limits.max_pattern_expansion, limits.max_grammar_chars):
        refuse("pattern_expands_too_far", pointer, limits.max_pattern_expansion)


def _check_choice(choices: list[Any], pointer: str, limits: Limits) -> None:
    if len(choices) > limits.max_enum_values:
        refuse("schema_too_many_enum_values", pointer, limits.max_enum_values)
    if sum(len(item) for item in choices if isinstance(item, str)) > limits.max_enum_chars:
        refuse("schema_enum_too_long", pointer, limits.max_enum_chars)
