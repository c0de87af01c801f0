"""Which requested schemas can be used: the translation of compile errors into refusals.

Owns that translation; what a schema may cost is decided before (`admission.admission`). Pure: must not import
I/O.
"""

from __future__ import annotations

from structuredllm_gateway.errors import SchemaRejectedError
from structuredllm_gateway.openai.requests import Structure
from structuredllm_gateway.validation.validators import CompiledSchema, SchemaCompileError, ValidatorCache


def admit(structure: Structure | None, cache: ValidatorCache) -> CompiledSchema | None:
    """Return the validator for what a request asks for; None when it asks for nothing that can be validated.

    Raises:
        SchemaRejectedError: it is not a draft 2020-12 schema; `param` is the JSON pointer of the place in the
            request body.
    """
    if structure is None or structure.schema is None:
        return None
    try:
        return cache.compiled(structure.schema)
    except SchemaCompileError as error:
        place = structure.pointer + error.pointer
        raise SchemaRejectedError(
            f"The schema at {place} is not valid JSON Schema (draft 2020-12, no references to other "
            f"documents): {error.message}",
            param=place,
        ) from error
