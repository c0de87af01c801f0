"""From what a request asks for to what its answer is judged by.

Owns the compilation of every structure of a request: of its text and of its functions' arguments. Pure: must
not import I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from structuredllm_gateway.errors import SchemaRejectedError
from structuredllm_gateway.openai.requests import CompletionRequest
from structuredllm_gateway.openai.structures import Structure, StructureKind
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.validators import CompiledSchema

_ECHO = "echo"


def expect(
    request: CompletionRequest, admit: Callable[[Structure], CompiledSchema | None]
) -> Expectation | None:
    """Return what the answer must be; None when nothing is asked of it.

    Args:
        request: the request.
        admit: compiles one structure; None for one that cannot be validated.

    Raises:
        SchemaRejectedError: a structure cannot be used; `param` is its place in the request body.
    """
    if not request.is_structured:
        return None
    structure, tools = request.structure, request.tools
    content = None if structure is None else _content(structure, admit)
    arguments: dict[str, CompiledSchema] = {}
    for name, asked in () if tools is None else tools.judged.items():
        compiled = admit(asked)
        if compiled is not None:
            arguments[name] = compiled
    return Expectation(
        # A text that begins with the prompt is not the one that was asked for.
        content=None if request.echoes else content,
        content_is_text=structure is not None and structure.kind.is_of_text,
        has_structure=structure is not None,
        unvalidated=_unvalidated(request),
        known_tools=None if tools is None else tools.known,
        arguments=arguments,
        requires_call=tools is not None and tools.requires_call,
        only_tool=None if tools is None else tools.only,
        choices=request.choices,
    )


def _content(
    structure: Structure, admit: Callable[[Structure], CompiledSchema | None]
) -> CompiledSchema | None:
    try:
        return admit(structure)
    except SchemaRejectedError as error:
        if structure.kind is not StructureKind.REGEX:
            raise
        # The schema around the expression is ours: what is wrong is the expression.
        raise SchemaRejectedError(
            f"The regular expression at {structure.pointer} cannot be used: it is not one, is too large, or "
            "has look-around or back-references, which need more than linear time.",
            param=structure.pointer,
            code="invalid_regex",
        ) from error


def _unvalidated(request: CompletionRequest) -> str:
    structure = request.structure
    if structure is None:
        return ""
    if structure.schema is None:
        return structure.kind.value
    return _ECHO if request.echoes else ""
