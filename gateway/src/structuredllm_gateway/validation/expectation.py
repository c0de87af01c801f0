"""What an answer must be, compiled: for its text, for the arguments of its calls, for their number.

Owns the value that the judge is given; pure, must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from structuredllm_gateway.validation.validators import CompiledSchema


@dataclass(frozen=True)
class Expectation:
    """What a request asks of its answer.

    Attributes:
        content: what the text must satisfy; None = nothing, or nothing that can be validated.
        content_is_text: whether `content` is for the text as a string (regex, choice), not for JSON in it.
        has_structure: whether a structure of the text is asked for, validated or not.
        unvalidated: why the text cannot be validated although a structure is asked for ("" = it can).
        known_tools: the functions that may be called; None = the request gave none.
        arguments: what the arguments of calls must satisfy, by function; of the others anything.
        requires_call: whether an answer without a call is wrong.
        only_tool: the one function that may be called, when one is named.
        choices: how many choices there must be at least.
    """

    content: CompiledSchema | None = None
    content_is_text: bool = False
    has_structure: bool = True
    unvalidated: str = ""
    known_tools: frozenset[str] | None = None
    arguments: Mapping[str, CompiledSchema] = field(default_factory=dict)
    requires_call: bool = False
    only_tool: str | None = None
    choices: int = 1

    @property
    def key(self) -> str | None:
        """Hash that names the structure in the log line: of the text's schema, else of the first call's."""
        if self.content is not None:
            return self.content.key
        return next((schema.key for schema in self.arguments.values()), None)
