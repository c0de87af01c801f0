"""The ASGI end of the relay: a response that reads, answers, and stops when the client has gone.

Owns the watch for disconnects: a client that leaves cancels the relay, which closes the engine's
connection, which makes the engine abort the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from structuredllm_gateway.admission.limits import BodyReader
from structuredllm_gateway.relay.exchange import Incoming, Route
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.settings import LimitSettings
from structuredllm_gateway.telemetry.request_id import SCOPE_KEY
from structuredllm_gateway.telemetry.visit import SCOPE_KEY as VISIT_KEY
from structuredllm_gateway.telemetry.visit import Visit


class AsgiSink:
    """A `Sink` over one ASGI send channel."""

    def __init__(self, send: Send) -> None:
        """Start with nothing sent."""
        self._send = send
        self.started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Sink.start`."""
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """See `Sink.write`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """See `Sink.end`."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class RelayResponse(Response):
    """A response that a route returns without having done anything yet."""

    def __init__(self, relay: Relay, route: Route, limits: LimitSettings) -> None:
        """Prepare for one call."""
        super().__init__()
        self._relay = relay
        self._route = route
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, cancelled when the client goes away."""
        headers = Headers(scope=scope)
        reader = BodyReader(
            receive,
            headers,
            max_bytes=self._limits.max_body_bytes,
            timeout_seconds=self._limits.body_timeout_seconds,
        )
        visit: Visit = scope[VISIT_KEY]
        incoming = Incoming(
            self._route, scope[SCOPE_KEY], headers, reader.read, caller=visit.grant.caller, visit=visit
        )
        work = asyncio.create_task(self._relay.respond(incoming, AsgiSink(send)))
        gone = asyncio.create_task(reader.until_disconnect())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = work.done()
            work.cancel()
            gone.cancel()
            await asyncio.wait((work, gone))
        if finished:
            work.result()
