"""Whether a try that failed is repeated on another replica.

Owns the matrix of classes; pure, must not import I/O. Never: a refusal (4xx), a truncated answer, anything
after the client got a byte.
"""

from __future__ import annotations

from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.validation.outcomes import CUT, FAULTS, Outcome

_ALWAYS = frozenset(
    {
        Outcome.GRAMMAR_REJECTED,
        Outcome.CONNECT_ERROR,
        Outcome.TIMEOUT,
        Outcome.STREAM_ERROR,
        Outcome.STREAM_ABORTED,
        Outcome.STREAM_EMPTY,
    }
)


def is_retryable(
    outcome: Outcome, *, mode: ValidationMode, committed: bool, upstream_status: int | None
) -> bool:
    """Return whether the class may be tried again elsewhere.

    Args:
        outcome: class of the try.
        mode: the model's validation mode; faulty answers are tried again only where they would be refused.
        committed: whether the client already got a byte of this answer.
        upstream_status: HTTP status of the replica; 503 says that it did not take the request.
    """
    if committed:
        return False
    if outcome in _ALWAYS:
        return True
    if outcome is Outcome.UPSTREAM_5XX:
        return upstream_status == 503
    return mode is ValidationMode.ENFORCE and outcome in FAULTS - CUT
