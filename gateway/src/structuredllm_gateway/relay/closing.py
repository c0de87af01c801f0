"""The last events of a stream: an error if there is one, the verdict, the end mark where the route has one.

Owns their order and shapes by route; pure, must not import I/O.
"""

from __future__ import annotations

import orjson

from structuredllm_gateway.errors import GatewayError
from structuredllm_gateway.openai.errors import error_bytes, error_event_object
from structuredllm_gateway.openai.sse import DONE, data_event, named_event, verdict_comment
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.validation.outcomes import Outcome


def closing_events(route: Route, outcome: Outcome, error: GatewayError | None, request_id: str) -> bytes:
    """Return what ends a stream on `route` whose verdict is `outcome`."""
    if route is Route.RESPONSES:
        # Its streams have named events and no end mark: the last event is the end.
        refusal = b""
        if error is not None:
            refusal = named_event("error", orjson.dumps(error_event_object(error, request_id)))
        return refusal + verdict_comment(outcome)
    refusal = b"" if error is None else data_event(error_bytes(error, request_id))
    return refusal + verdict_comment(outcome) + DONE
