"""The relayed routes as a connection calls them itself, with a request that has come whole.

Owns what `entrance` and `routes.response` do together for ASGI: id, trace, key, measures, relay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from structuredllm_gateway.admission.limits import ClientClosedError
from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.passage import Passage
from structuredllm_gateway.reception import RawHeaders, Reception
from structuredllm_gateway.relay.exchange import Incoming, Route, Sink
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.routes.downstream import HeaderMap
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.telemetry.visit import Visit

__all__ = ["Call", "DirectRoute", "RawHeaders"]


class Call(Sink, Protocol):
    """The answer's way out (`server.direct.DirectCall`)."""

    passage: Passage | None

    @property
    def gone(self) -> bool:
        """Whether the client has gone."""
        ...


class DirectRoute:
    """Answers the requests of one route; holds nothing of any of them.

    Attributes:
        max_bytes: largest body that it takes; larger ones are refused by `routes.response`.
    """

    def __init__(
        self,
        relay: Relay,
        route: Route,
        reception: Reception,
        metrics: Metrics,
        *,
        max_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """Prepare for any number of calls."""
        self.max_bytes = max_bytes
        self._relay = relay
        self._route = route
        self._path = route.path
        self._reception = reception
        self._metrics = metrics
        self._clock = clock

    async def answer(self, call: Call, headers: RawHeaders, body: bytes) -> None:
        """Answer one request; cancelled when the client goes away."""
        request_id, trace_id, headers = self._reception.identified(headers)
        try:
            grant = self._reception.asked(headers)
        except KeyRefusedError as error:
            fields, refusal = self._reception.refusal(error, self._path, request_id, trace_id)
            await call.start(error.status, fields)
            await call.write(refusal)
            return
        visit = Visit(grant, trace_id)
        call.passage = passage = Passage(visit, request_id, self._metrics, self._clock)
        incoming = Incoming(
            self._route,
            request_id,
            HeaderMap(headers),
            _left if call.gone else None,
            caller=grant.caller,
            visit=visit,
            body=body,
        )
        try:
            await self._relay.respond(incoming, call)
        finally:
            passage.settle()


async def _left() -> bytes:
    """Read the body of a client that went away before its request was looked at."""
    raise ClientClosedError
