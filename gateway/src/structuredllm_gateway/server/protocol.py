"""One client connection: uvicorn's httptools protocol, with the deadlines and caps it lacks.

Owns the phases of a connection (header, body, answer, idle) and what ends it. uvicorn waits for ever for a
header or a body, takes a header of any size and keeps a client that does not read (CVE-2025-48956 is one
such server). `tests/unit/gateway/test_server_pins.py` names every part of uvicorn that is relied on here.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from structuredllm_gateway.server import refusals
from structuredllm_gateway.server.bounds import Connections
from structuredllm_gateway.server.direct_protocol import DirectProtocol
from structuredllm_gateway.telemetry.connections import EndReason

_NEVER = float("inf")
# A header field costs more than its bytes: the separators on the wire, and an object here.
_FIELD_BYTES = 4
# Body bytes on the wire are more than those of the body: chunk sizes and extensions.
_CHUNKED_SLACK = 4


class BoundedProtocol(DirectProtocol):
    """One connection; `look` is called a few times in each deadline's time."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        """Prepare as uvicorn does; `connections` is shared by all connections of the process."""
        super().__init__(config, server_state, app_state, _loop)
        self._keeper = connections
        self._bounds = connections.bounds
        self._is_deaf = False
        self._receiving_header = False
        self._receiving_body = False
        self._read_deadline = _NEVER
        self._write_deadline = _NEVER
        self._linger_deadline = _NEVER
        self._idle_deadline = _NEVER
        self._message_bytes = 0
        self._header_bytes = 0

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection if there is room."""
        super().connection_made(transport)
        # Typed as what uvicorn expects: it uses only the three methods.
        self._answer_transport = cast("asyncio.Transport", _AnswerTransport(self, transport))
        if not self._keeper.opened(self, self.loop):
            self._keeper.counts.ended[EndReason.REFUSED] += 1
            transport.write(refusals.NO_ROOM)
            transport.close()
            return
        transport.set_write_buffer_limits(high=self._bounds.write_buffer_bytes)
        self._read_deadline = self.loop.time() + self._bounds.header_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._keeper.closed(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, within the caps."""
        if self._linger_deadline != _NEVER or self._is_deaf:
            return  # the last answer of this connection is on its way
        self._unset_keepalive_if_required()
        self._idle_deadline = _NEVER
        if self._read_deadline == _NEVER and not self._is_answering:
            # Also bytes that begin no message, such as empty lines, must not keep a connection for ever.
            self._read_deadline = self.loop.time() + self._bounds.header_seconds
        self._message_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # An offer (h2c, websocket) that we do not take: the answer is HTTP/1.1. The parser stops here.
            self._is_deaf = True
            if self._is_answering:
                self.cycle.keep_alive = False
            return
        except httptools.HttpParserError:
            self.settle_way()
            if self._linger_deadline == _NEVER:
                self._refuse(refusals.MALFORMED, EndReason.MALFORMED)
            return
        if self._linger_deadline != _NEVER:
            return  # refused on the way
        self.settle_way()
        if self._receiving_header or not (self._receiving_body or self._is_answering):
            if self._message_bytes > self._bounds.max_header_bytes:
                self._refuse(
                    refusals.header_too_large(self._bounds.max_header_bytes), EndReason.HEADER_TOO_LARGE
                )
        elif self._receiving_body and self._message_bytes > _CHUNKED_SLACK * self._bounds.max_body_bytes:
            self._refuse(refusals.body_too_large(self._bounds.max_body_bytes), EndReason.MALFORMED)

    def pause_writing(self) -> None:
        """The client reads too slowly: hold the app, and give the client its time."""
        super().pause_writing()
        self._write_deadline = self.loop.time() + self._bounds.write_seconds

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._write_deadline = _NEVER

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._receiving_header = True
        self._header_bytes = 0
        if self._read_deadline == _NEVER:
            self._read_deadline = self.loop.time() + self._bounds.header_seconds

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the header, or of a chunked body's trailer, which nobody reads."""
        if self._receiving_header:
            self._header_bytes += len(name) + len(value) + _FIELD_BYTES
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin the answer, unless the header is too large."""
        if self._header_bytes > self._bounds.max_header_bytes:
            self._refuse(refusals.header_too_large(self._bounds.max_header_bytes), EndReason.HEADER_TOO_LARGE)
        if self._linger_deadline != _NEVER:
            return
        self._keeper.waiting.pop(self, None)
        self._receiving_header = False
        self._receiving_body = True
        self._message_bytes = 0
        self._read_deadline = self.loop.time() + self._bounds.body_seconds
        super().on_headers_complete()

    def cycle_made(self) -> None:
        """See `DirectProtocol.cycle_made`."""
        self.cycle.transport = self._answer_transport
        if self._keeper.draining:
            # So that the client asks elsewhere next, before this connection is closed under it.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._linger_deadline == _NEVER:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        if self._linger_deadline != _NEVER:
            return
        self._receiving_body = False
        self._message_bytes = 0
        self._read_deadline = _NEVER
        super().on_message_complete()
        if not self._is_answering:
            # Answered before it had come (a refusal): uvicorn has stopped its timer for the rest of the body.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self._wait()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        """The answer is given: wait for the next request."""
        if self._linger_deadline != _NEVER:
            return
        if self.pipeline or self.transport.is_closing() or not self.is_direct:
            super().on_response_complete()
        else:
            # As uvicorn does, but without a timer for each answer: the keeper looks at the time.
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self._idle_deadline = self.loop.time() + self.timeout_keep_alive
        if not (self._receiving_header or self._receiving_body or self._is_answering):
            self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """Nobody asked for too long."""
        self._keeper.counts.ended[EndReason.IDLE] += 1
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """End after what runs. A request that has begun to arrive is still answered."""
        if self._is_answering or not self._receiving_header:
            super().shutdown()

    # What the keeper calls

    def look(self, now: float) -> None:
        """See `Bounded.look`."""
        if now >= self._linger_deadline or now >= self._write_deadline:
            if now >= self._write_deadline:
                self._keeper.counts.ended[EndReason.WRITE_TIMEOUT] += 1
            self.transport.abort()
            return
        if self.transport.is_closing():
            if self._write_deadline == _NEVER:
                self._write_deadline = now + self._bounds.write_seconds
            return
        if now >= self._idle_deadline:
            self._idle_deadline = _NEVER
            self.timeout_keep_alive_handler()
            return
        if now < self._read_deadline:
            return
        if self.flow.read_paused:
            # The app does not take what has come: not the client's fault.
            self._read_deadline = now + self._bounds.body_seconds
        elif self._receiving_body:
            self._refuse(refusals.BODY_TIMEOUT, EndReason.BODY_TIMEOUT)
        else:
            self._refuse(refusals.HEADER_TIMEOUT, EndReason.HEADER_TIMEOUT)

    def evict(self) -> None:
        """See `Bounded.evict`."""
        self._keeper.counts.ended[EndReason.EVICTED] += 1
        self.transport.abort()

    # Our own

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if not self.transport.is_closing():
            self._keeper.waiting[self] = None

    def _refuse(self, answer: bytes, reason: EndReason) -> None:
        """Answer in the app's place and end; in the middle of another answer only end."""
        self._keeper.counts.ended[reason] += 1
        if self._is_answering:
            if self._receiving_header or self.pipeline or self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Close once the client has had time to read.

        Closing while it still sends would make the kernel reset the connection, and the answer be lost.
        """
        self._unset_keepalive_if_required()
        self._read_deadline = self._idle_deadline = _NEVER
        self._linger_deadline = self.loop.time() + self._bounds.linger_seconds
        self._keeper.waiting.pop(self, None)
        self.flow.resume_reading()

    def close_after_answer(self) -> None:
        """Close now, or after a while when the client has not sent all of its request."""
        if self._receiving_body and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()


class _AnswerTransport:
    """The transport as one answer sees it: writing as ever, closing with patience."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, protocol: BoundedProtocol, transport: asyncio.Transport) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = protocol.close_after_answer
