"""The outermost layer of the API: request id, trace, key, and the measures of a request.

Owns one pure ASGI layer, because each of its own would wrap `send` again, and that is called for every part
of every stream. (No BaseHTTPMiddleware: it would copy each part through a queue.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.keys.gatekeeper import Gatekeeper, Grant
from structuredllm_gateway.openai.errors import error_bytes
from structuredllm_gateway.telemetry.metrics import OTHER, Metrics
from structuredllm_gateway.telemetry.request_id import HEADER, SCOPE_KEY, is_well_formed
from structuredllm_gateway.telemetry.trace import (
    TRACEPARENT,
    TRACESTATE,
    is_traceparent,
    new_traceparent,
    trace_id_of,
)
from structuredllm_gateway.telemetry.visit import CURRENT, Visit
from structuredllm_gateway.telemetry.visit import SCOPE_KEY as VISIT_KEY

OPEN_PATHS = frozenset({"/health", "/healthz", "/ready", "/readyz"})
"""What asks for no key: the kubelet and load balancers have none."""
_DEBUG = "/debug"
_ID_HEADER = HEADER.encode()


class Entrance:
    """Lets a request in, or answers why not; measures what passes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
        new_id: Callable[[], str],
        rng: random.Random,
        log: structlog.typing.FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap `app`; `new_id` makes ids for requests that bring none, `rng` those of traces."""
        self._app = app
        self._gatekeeper = gatekeeper
        self._metrics = metrics
        self._new_id = new_id
        self._rng = rng
        self._log = log
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, trace_id = self._identified(scope)
        scope[SCOPE_KEY] = request_id
        try:
            grant = self._admitted(scope)
        except KeyRefusedError as error:
            await self._refused(scope, send, error, request_id, trace_id)
            return
        visit = Visit(grant, trace_id)
        scope[VISIT_KEY] = visit
        CURRENT.set(visit)
        passage = _Passage(visit, receive, send, self._metrics, self._clock, request_id.encode("latin-1"))
        try:
            await self._app(scope, passage.receive, passage.send)
        finally:
            passage.settle()

    def _identified(self, scope: Scope) -> tuple[str, str]:
        """Return request id and trace id; a missing or malformed traceparent is replaced in the scope."""
        given = traceparent = b""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        for name, value in headers:
            if name == _ID_HEADER:
                given = value
            elif name == TRACEPARENT:
                traceparent = value
        if not is_traceparent(traceparent):
            traceparent = new_traceparent(self._rng)
            dropped = (TRACEPARENT, TRACESTATE)
            headers = [item for item in headers if item[0] not in dropped]
            headers.append((TRACEPARENT, traceparent))
            scope["headers"] = headers
        text = given.decode("latin-1")
        return (text if is_well_formed(text) else self._new_id()), trace_id_of(traceparent)

    def _admitted(self, scope: Scope) -> Grant:
        path, headers = scope["path"], scope["headers"]
        if path in OPEN_PATHS:
            return Grant()
        if path == _DEBUG or path.startswith(_DEBUG + "/"):
            client = scope.get("client")
            self._gatekeeper.check_debug(headers, client[0] if client else None)
            return Grant()
        return self._gatekeeper.enter(headers, counted=scope["method"] == "POST")

    async def _refused(
        self, scope: Scope, send: Send, error: KeyRefusedError, request_id: str, trace_id: str
    ) -> None:
        self._metrics.refused_key(error, scope["path"])
        self._log.info(
            "request",
            request_id=request_id,
            trace_id=trace_id,
            path=scope["path"][:128],
            model=OTHER,
            status=error.status,
            outcome=error.outcome.value,
            error_code=error.code,
            reason=error.reason,
        )
        body = error_bytes(error, request_id)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            HEADER: request_id,
            "x-structuredllm-outcome": error.outcome.value,
            **error.headers,
        }
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": raw})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class _Passage:
    """The two channels of one request, with what passes through them measured."""

    def __init__(
        self,
        visit: Visit,
        receive: Receive,
        send: Send,
        metrics: Metrics,
        clock: Callable[[], float],
        request_id: bytes,
    ) -> None:
        self._visit = visit
        self._receive = receive
        self._send = send
        self._metrics = metrics
        self._clock = clock
        self._request_id = request_id
        self._is_read = False
        self._is_stream = False
        self._is_settled = False
        self._last_part: float | None = None
        self.status = 499

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
            self.status = message["status"]
            message["headers"] = self._headers(message)
        else:
            if body := message.get("body"):
                self._visit.look_at(body)
                if self._is_stream:
                    self._note_part()
            if not message.get("more_body", False):
                # Before the client knows that it is done, and can ask again.
                self.settle()
        since = self._clock()
        await self._send(message)
        self._visit.client_seconds += self._clock() - since

    def settle(self) -> None:
        """End the grant with what was used; once."""
        if not self._is_settled:
            self._is_settled = True
            self._visit.grant.close(self._visit.used_tokens(self.status))

    def _headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = [item for item in message.get("headers", ()) if item[0] != _ID_HEADER]
        headers.append((_ID_HEADER, self._request_id))
        for name, value in self._visit.grant.headers().items():
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        self._is_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        return headers

    def _note_part(self) -> None:
        visit, now = self._visit, self._clock()
        visit.parts += 1
        if self._last_part is not None and visit.model is not None:
            self._metrics.inter_token.series(visit.model).observe(now - self._last_part)
        self._last_part = now
