"""What the patches remember of one structured request, next to its grammar. Pure.

It hangs on vLLM's own object of the request's grammar and so ends with the request: nothing can leak into
another request, not even one with the same id.
"""

from dataclasses import dataclass
from typing import Any, cast

ATTRIBUTE = "_structuredllm_grammar_state"


@dataclass
class GrammarState:
    """State of one structured request.

    Attributes:
        verdict: whether its grammar took the token of the step that is being processed, when it was already
            asked; None otherwise.
        recoveries: how often the request was rolled back after a refused token.
        dead_end: its grammar allowed no token at the last mask.
    """

    verdict: bool | None = None
    recoveries: int = 0
    dead_end: bool = False


def state_of(structured_request: Any) -> GrammarState:
    """Return the state of a structured request, making it at the first call.

    Args:
        structured_request: vLLM's `StructuredOutputRequest`.
    """
    found = getattr(structured_request, ATTRIBUTE, None)
    if found is None:
        found = GrammarState()
        setattr(structured_request, ATTRIBUTE, found)
    return cast(GrammarState, found)


def known_state_of(structured_request: Any) -> GrammarState | None:
    """Return the state if there is one; also takes None, which a plain request has instead."""
    return getattr(structured_request, ATTRIBUTE, None)
