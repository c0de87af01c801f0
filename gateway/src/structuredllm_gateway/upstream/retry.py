"""Whether a try that failed is repeated on another replica.

Owns the matrix of classes; pure, must not import I/O. Never: a refusal (4xx), a truncated answer, anything
after the client got a byte. An answer that is wrong is asked for once more, not more often: an engine that
cannot do a schema cannot do it on the fifth replica either. What was never answered may be tried as often as
`upstream.max_attempts` allows. Both stay within the retry budget (`replicas.budget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from structuredllm_gateway.upstream.endpoints import ValidationMode


class Repeat(Enum):
    """How a class may be tried again."""

    NEVER = auto()
    ONCE = auto()
    ONCE_IF_REFUSED = auto()  # only where the client would otherwise get an error: Enforce
    WITHIN_ATTEMPTS = auto()


# By name, as the classes are the wire's contract; upstream_5xx depends on the status, see `is_retryable`.
REPEAT: Mapping[str, Repeat] = {
    "grammar_rejected": Repeat.ONCE,
    "finish_abnormal": Repeat.ONCE_IF_REFUSED,
    "not_json": Repeat.ONCE_IF_REFUSED,
    "schema_violation": Repeat.ONCE_IF_REFUSED,
    "trailing_or_leading_text": Repeat.ONCE_IF_REFUSED,
    "empty": Repeat.ONCE_IF_REFUSED,
    "in_reasoning": Repeat.ONCE_IF_REFUSED,
    "connect_error": Repeat.WITHIN_ATTEMPTS,
    "timeout": Repeat.WITHIN_ATTEMPTS,
    "stream_error": Repeat.WITHIN_ATTEMPTS,
    "stream_aborted": Repeat.WITHIN_ATTEMPTS,
    "stream_empty": Repeat.WITHIN_ATTEMPTS,
}
_ANSWERED = (Repeat.ONCE, Repeat.ONCE_IF_REFUSED)


def is_retryable(
    outcome: str,
    *,
    mode: ValidationMode,
    committed: bool,
    upstream_status: int | None,
    asked_again: bool = False,
) -> bool:
    """Return whether the class may be tried again elsewhere.

    Args:
        outcome: class of the try.
        mode: the model's validation mode; faulty answers are tried again only where they would be refused.
        committed: whether the client already got a byte of this answer.
        upstream_status: HTTP status of the replica; 503 says that it did not take the request.
        asked_again: whether this request was already repeated because of a wrong answer.
    """
    if committed:
        return False
    if outcome == "upstream_5xx":
        return upstream_status == 503
    repeat = REPEAT.get(outcome, Repeat.NEVER)
    if repeat is Repeat.ONCE_IF_REFUSED and mode is not ValidationMode.ENFORCE:
        return False
    if repeat in _ANSWERED and asked_again:
        return False
    return repeat is not Repeat.NEVER


def is_answered(outcome: str) -> bool:
    """Whether the class is one of an answer that is wrong, which is asked for once more only."""
    return REPEAT.get(outcome, Repeat.NEVER) in _ANSWERED
