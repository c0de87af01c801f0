"""Uvicorn's connection, which answers the direct routes by itself.

Owns the decision which way a request goes: directly when it is one of `app.direct` and all of it has come
with one read, else as ASGI like every other. A body that comes in parts, an offer or an expectation, a
pipelined request: all of that is uvicorn's, which begins then as if it had seen the head just now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from structuredllm_gateway.routes.direct import DirectRoute
from structuredllm_gateway.server.direct import DirectCall


class DirectProtocol(HttpToolsProtocol):
    """One connection; whoever extends it calls `settle_way` after each read.

    Attributes:
        is_direct: whether `cycle` is a `DirectCall`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Prepare as uvicorn does; the routes are the app's attribute `direct`, if it has one."""
        super().__init__(config, server_state, app_state, _loop)
        self._routes: Mapping[bytes, DirectRoute] = getattr(config.loaded_app, "direct", {})
        # A request that may be a direct one, while not all of it is here: its route and body so far.
        self._way: DirectRoute | None = None
        self._parts: list[bytes] = []
        self._may_stay = False
        self.is_direct = False

    def cycle_made(self) -> None:
        """`self.cycle` is a new one."""

    def on_message_begin(self) -> None:
        """A request begins; what ASGI needs is made when it is known to go that way."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """The head is here: hold it if the request may be a direct one."""
        parser = self.parser
        way = self._routes.get(self.url)
        if (
            way is not None
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and (self.cycle is None or self.cycle.response_complete)
        ):
            self._way = way
            self._may_stay = parser.should_keep_alive()
            return
        self._as_asgi()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._way is not None:
            self._parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here: answer it, if it is a direct one."""
        way = self._way
        if way is None:
            super().on_message_complete()
            return
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(body) > way.max_bytes:
            self.settle_way()
            super().on_message_complete()
            return
        self._way = None
        parts.clear()
        call = DirectCall(
            self.transport,
            self.flow,
            self.server_state.default_headers,
            keep_alive=self._may_stay,
            on_complete=self.on_response_complete,
        )
        # It has all of a cycle that a connection touches.
        self.cycle = call  # type: ignore[assignment]
        self.is_direct = True
        self.cycle_made()
        call.task = task = self.loop.create_task(call.run(way, self.headers, body))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def settle_way(self) -> None:
        """All that was read is looked at: a request that is not here whole goes to ASGI."""
        if self._way is None:
            return
        self._way = None
        parts, self._parts = self._parts, []
        self._as_asgi()
        for part in parts:
            super().on_body(part)

    def _as_asgi(self) -> None:
        self.is_direct = False
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the list is the scope's
        super().on_headers_complete()
        self.cycle_made()
