"""The outermost layer of the API: request id, trace, key, and the measures of a request.

Owns one pure ASGI layer, because each of its own would wrap `send` again, and that is called for every part
of every stream. (No BaseHTTPMiddleware: it would copy each part through a queue.)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.passage import Passage
from structuredllm_gateway.reception import Reception
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.telemetry.request_id import HEADER, SCOPE_KEY
from structuredllm_gateway.telemetry.visit import SCOPE_KEY as VISIT_KEY
from structuredllm_gateway.telemetry.visit import Visit

_ID_HEADER = HEADER.encode()


class Entrance:
    """Lets a request in, or answers why not; measures what passes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        reception: Reception,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap `app`; `clock` is monotonic seconds."""
        self._app = app
        self._reception = reception
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, trace_id, scope["headers"] = self._reception.identified(scope["headers"])
        scope[SCOPE_KEY] = request_id
        path = scope["path"]
        try:
            grant = self._reception.admitted(scope["method"], path, scope["headers"], scope.get("client"))
        except KeyRefusedError as error:
            headers, body = self._reception.refusal(error, path, request_id, trace_id)
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": error.status, "headers": raw})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        visit = Visit(grant, trace_id)
        scope[VISIT_KEY] = visit
        passage = Passage(visit, request_id, self._metrics, self._clock)
        channels = _Channels(passage, receive, send, self._clock)
        try:
            await self._app(scope, channels.receive, channels.send)
        finally:
            passage.settle()


class _Channels:
    """The two channels of one request, with what passes through them measured."""

    def __init__(self, passage: Passage, receive: Receive, send: Send, clock: Callable[[], float]) -> None:
        self._visit = passage.visit
        self._passage = passage
        self._receive = receive
        self._send = send
        self._clock = clock
        self._is_read = False

    async def receive(self) -> Message:
        if self._is_read:
            return await self._receive()  # waits for the client to go, beside the work
        since = self._clock()
        message = await self._receive()
        self._visit.client_seconds += self._clock() - since
        self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._passage.status = message["status"]
            message["headers"] = self._headers(message)
        else:
            if body := message.get("body"):
                self._passage.part(body)
            if not message.get("more_body", False):
                self._passage.settle()
        since = self._clock()
        await self._send(message)
        self._visit.client_seconds += self._clock() - since

    def _headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = [item for item in message.get("headers", ()) if item[0] != _ID_HEADER]
        for name, value in self._passage.fields().items():
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        self._passage.is_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        return headers
