"""The ASGI end of the relay: reads, answers, and stops when the client has gone.

Owns the adapter between one ASGI call and the relay. It is called by the app itself for the relayed routes,
before any routing; a client that leaves cancels the relay, which closes the engine's connection, which makes
the engine abort the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from structuredllm_gateway.relay.exchange import Incoming, Route
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.routes.downstream import Downstream, HeaderMap
from structuredllm_gateway.settings import LimitSettings
from structuredllm_gateway.telemetry.request_id import SCOPE_KEY
from structuredllm_gateway.telemetry.visit import SCOPE_KEY as VISIT_KEY
from structuredllm_gateway.telemetry.visit import Visit


class AsgiSink:
    """A `Sink` over one ASGI send channel."""

    __slots__ = ("_downstream", "_is_ended", "_left", "_send", "started")

    def __init__(self, send: Send, downstream: Downstream) -> None:
        """Start with nothing sent; `downstream` is told when the answer is complete."""
        self._send = send
        self._downstream = downstream
        # Bytes of the declared length that are not sent yet; None = no length is declared.
        self._left: int | None = None
        self._is_ended = False
        self.started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Sink.start`."""
        self.started = True
        length = headers.get("content-length")
        self._left = None if length is None else int(length)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """See `Sink.write`; with the last declared byte the answer is ended, too."""
        if self._left is not None:
            self._left -= len(data)
            if self._left == 0:
                await self._last(data)
                return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """See `Sink.end`."""
        if not self._is_ended:
            await self._last(b"")

    async def _last(self, data: bytes) -> None:
        # A complete answer looks to the receive channel like a client that has gone.
        self._is_ended = True
        self._downstream.stop()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


class RelayResponse(Response):
    """Answers the requests of one route; holds nothing of any of them."""

    def __init__(self, relay: Relay, route: Route, limits: LimitSettings) -> None:
        """Prepare for any number of calls."""
        super().__init__()
        self._relay = relay
        self._route = route
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, cancelled when the client goes away."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        headers = HeaderMap(scope["headers"])
        downstream = Downstream(
            receive,
            headers,
            task,
            max_bytes=self._limits.max_body_bytes,
            timeout_seconds=self._limits.body_timeout_seconds,
        )
        visit: Visit = scope[VISIT_KEY]
        incoming = Incoming(
            self._route, scope[SCOPE_KEY], headers, downstream.read, caller=visit.grant.caller, visit=visit
        )
        try:
            await self._relay.respond(incoming, AsgiSink(send, downstream))
        except asyncio.CancelledError:
            if not downstream.gone:
                raise
            task.uncancel()
        finally:
            downstream.stop()
