"""Request ids: taken from the client when well-formed, else made; on every response.

Owns a pure ASGI middleware (no BaseHTTPMiddleware: it would copy every streamed chunk through a queue).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
SCOPE_KEY = "structuredllm.request_id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIdMiddleware:
    """Puts the id into the scope under `SCOPE_KEY` and into the response's headers."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        """Wrap `app`; `new_id` makes ids for requests that bring none."""
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _WELL_FORMED.fullmatch(given) else self._new_id()
        scope[SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
