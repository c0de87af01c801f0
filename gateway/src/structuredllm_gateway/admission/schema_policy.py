"""Which requested schemas may reach an engine.

Owns the limits on a schema's shape and the translation of compile errors into refusals. Pure: must not
import I/O. The limits keep the gateway's own work small; what the engine's grammar backend cannot do it
refuses itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from structuredllm_gateway.errors import SchemaRejectedError
from structuredllm_gateway.openai.requests import Structure
from structuredllm_gateway.validation.validators import CompiledSchema, SchemaCompileError, ValidatorCache


@dataclass(frozen=True)
class SchemaLimits:
    """Bounds on a schema: nesting of JSON containers, and number of values in all."""

    max_depth: int
    max_nodes: int


def admit(structure: Structure | None, limits: SchemaLimits, cache: ValidatorCache) -> CompiledSchema | None:
    """Return the validator for what a request asks for; None when it asks for nothing that can be validated.

    Raises:
        SchemaRejectedError: the schema is above a limit or is not a draft 2020-12 schema; `param` is the JSON
            pointer of the place in the request body.
    """
    if structure is None or structure.schema is None:
        return None
    _check_shape(structure.schema, structure.pointer, limits)
    try:
        return cache.compiled(structure.schema)
    except SchemaCompileError as error:
        place = structure.pointer + error.pointer
        raise SchemaRejectedError(
            f"The schema at {place} is not valid JSON Schema (draft 2020-12, no references to other "
            f"documents): {error.message}",
            param=place,
        ) from error


def _check_shape(schema: Any, pointer: str, limits: SchemaLimits) -> None:
    """Walk without recursion: the depth of a hostile schema must not be the depth of our stack."""
    pending: list[tuple[Any, int]] = [(schema, 1)]
    nodes = 0
    while pending:
        item, depth = pending.pop()
        nodes += 1
        if nodes > limits.max_nodes:
            raise SchemaRejectedError(
                f"The schema at {pointer} has more than {limits.max_nodes} values.",
                param=pointer,
                code="schema_too_large",
            )
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        if children and depth > limits.max_depth:
            raise SchemaRejectedError(
                f"The schema at {pointer} is nested deeper than {limits.max_depth} levels.",
                param=pointer,
                code="schema_too_deep",
            )
        pending.extend((child, depth + 1) for child in children)
