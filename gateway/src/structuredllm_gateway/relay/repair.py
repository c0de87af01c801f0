"""The repair attempt: one further try in which the model is told what was wrong with its answer.

Owns when it is made and what the model is told; pure, must not import I/O. The last resort of a resource
that asks for it: it costs a whole answer, and an answer that had to be argued for is no proof of a sound
engine, so it is counted apart and named in a header.
"""

from __future__ import annotations

from dataclasses import replace

from structuredllm_gateway.errors import StructuredOutputError
from structuredllm_gateway.relay.exchange import Exchange, Route, TryResult
from structuredllm_gateway.validation import exact_json
from structuredllm_gateway.validation.outcomes import CUT, FAULTS

UNDER_WAY = "under_way"
"""Value of the header while the repair's own stream is being passed on: how it ends is not known yet."""

_MAX_REASON = 500
_MESSAGE = (
    "Your answer to this was refused by a validator. {reason} Answer again. The whole answer must be exactly "
    "one value of the structure that is asked for, with no text before or after it."
)


def repaired_exchange(exchange: Exchange, result: TryResult, now: float) -> Exchange | None:
    """Return the exchange of the repair attempt, None when none is to be made.

    Only for chat, in Enforce, where the resource asks for it, and only for a complete answer that is not what
    was asked for: the violation is its class, the place and the keyword, never the answer's text.
    """
    error = result.error
    if not exchange.pool.structured.repair or exchange.is_repair or result.committed:
        return None
    # Only Enforce makes this error of a fault; a grammar reject has the same kind, and no violation to tell.
    if not isinstance(error, StructuredOutputError) or result.outcome not in FAULTS - CUT:
        return None
    if exchange.incoming.route is not Route.CHAT:
        return None
    if now >= exchange.deadline:
        return None
    body = _with_message(exchange.body, error.message)
    return None if body is None else replace(exchange, body=body, is_repair=True)


def _with_message(body: bytes, reason: str) -> bytes | None:
    whole = exact_json.loads(body)
    messages = whole.get("messages")
    if not isinstance(messages, list):
        return None
    printable = "".join(c if c.isprintable() else " " for c in reason[:_MAX_REASON])
    whole["messages"] = [*messages, {"role": "user", "content": _MESSAGE.format(reason=printable)}]
    return exact_json.dumps(whole)
