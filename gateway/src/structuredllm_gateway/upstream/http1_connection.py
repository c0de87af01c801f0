"""One connection to an engine: HTTP/1.1 on an asyncio transport, one request at a time.

Owns the reading of answers and the suspicion with which it is done. An answer counts as complete only when
the framing that its head declared says so: a body shorter than its Content-Length, a chunked body without
its end, or a head that is too large, malformed or contradictory is an `UpstreamConnectError`; silence is an
`UpstreamTimeoutError`. A connection that carried one byte more than its answer is not used again.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import cast

import httptools

from structuredllm_gateway.errors import UpstreamConnectError, UpstreamError, UpstreamTimeoutError
from structuredllm_gateway.upstream.http1_response import Http1Response

_VERSIONS = ("1.1", "1.0")
_MAX_INTERIM_ANSWERS = 8
_BROKEN = "The connection to the engine failed before its answer was complete."
_SILENT = "The engine did not answer in time."


class UntouchedError(UpstreamConnectError):
    """The connection was closed by the engine, and nothing of the request had reached it.

    Source of the rule: RFC 9110, section 9.2.2: a request that is not idempotent is repeated without being
    asked only if it is known not to have been applied.
    """


class Http1Connection(asyncio.Protocol):
    """One connection; its owner is told when it is free again and when it has closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        max_head_bytes: int,
        silence_seconds: float,
        on_free: Callable[[Http1Connection], None],
        on_closed: Callable[[Http1Connection], None],
    ) -> None:
        """Prepare; `silence_seconds` is the longest wait for the next byte of an answer."""
        self._loop = loop
        self._max_head_bytes = max_head_bytes
        self._silence_seconds = silence_seconds
        self._on_free = on_free
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._last_byte = 0.0
        self._paused = False
        self.closed = False
        self.answered = 0
        # Of the request under way.
        self._head: asyncio.Future[Http1Response] | None = None
        self._response: Http1Response | None = None
        self._sent_bytes = 0
        self._headers: dict[str, str] = {}
        # Bytes since the last part of a body, and of header fields: what an engine could make us hold.
        self._unproductive_bytes = 0
        self._field_bytes = 0
        self._interim = False
        self._interim_answers = 0
        self._has_bytes = False
        self._is_free = False

    # For the pool and the client.

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: open, and the engine is not known to have closed its end."""
        transport = self._transport
        return not self.closed and transport is not None and not transport.is_closing()

    @property
    def idle_seconds(self) -> float:
        """How long ago the last byte came."""
        return self._loop.time() - self._last_byte

    def send(self, head: bytes, body: bytes) -> asyncio.Future[Http1Response]:
        """Write a request; the future gives the answer's head, or an `UpstreamError`."""
        future: asyncio.Future[Http1Response] = self._loop.create_future()
        if not self.usable:
            future.set_exception(UntouchedError(_BROKEN))
            return future
        transport = cast(asyncio.Transport, self._transport)
        self._head = future
        self._headers = {}
        self._unproductive_bytes = self._field_bytes = self._interim_answers = 0
        self._has_bytes = False
        self._sent_bytes = len(head) + len(body)
        transport.write(head + body)
        self._last_byte = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_seconds, self._look_for_silence)
        return future

    def abort(self) -> None:
        """Close at once, without telling whoever waits for the answer."""
        self._head = self._response = None
        self._close()

    def pause(self) -> None:
        """Stop reading: the answer's reader is behind."""
        if not self._paused and not self.closed:
            self._paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._last_byte = self._loop.time()
            if not self.closed:
                cast(asyncio.Transport, self._transport).resume_reading()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer; anything outside of one closes the connection."""
        if self.closed:
            return
        if self._head is None and self._response is None:
            self._close()
            return
        self._has_bytes = True
        self._last_byte = self._loop.time()
        self._unproductive_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(
                UpstreamConnectError("The engine wants to change the protocol; that was not asked for.")
            )
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            reason = cause if isinstance(cause, _FaultError) else error
            self._fail(UpstreamConnectError(f"The engine's answer is not acceptable HTTP: {reason}."))
        else:
            if self._is_free:
                self._is_free = False
                if not self.closed:
                    self._on_free(self)
            elif self._unproductive_bytes > self._max_head_bytes and not self.closed:
                self._fail(self._too_much())

    def eof_received(self) -> bool:
        """The engine will send no more. While the socket is there: had it taken anything of the request?"""
        if self._head is not None and not self._has_bytes and self._nothing_arrived():
            self._fail(UntouchedError(_BROKEN))
        self._ended(well=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended(well=exc is None)

    # httptools' callbacks.

    def on_message_begin(self) -> None:
        """A second answer to one request is none that was asked for."""
        if self._head is None:
            raise _FaultError("it is followed by more bytes than it declared")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; those after a chunked body only count against the limit."""
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > self._max_head_bytes:
            raise _FaultError(f"its header fields are larger than {self._max_head_bytes} bytes")
        if self._response is not None:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "transfer-encoding" and text.lower() != "chunked":
            raise _FaultError(f"transfer-encoding {text[:64]!r}")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Hand the head over; interim answers are passed over."""
        version, status = self._parser.get_http_version(), self._parser.get_status_code()
        if version not in _VERSIONS:
            raise _FaultError(f"version {version}")
        if status < 200:
            self._interim_answers += 1
            if status < 100 or status == 101 or self._interim_answers > _MAX_INTERIM_ANSWERS:
                raise _FaultError(f"status {status}")
            self._interim = True
            self._headers = {}
            return
        head, self._head = self._head, None
        if head is None:
            raise _FaultError("no answer was asked for")
        self._unproductive_bytes = 0
        self._response = Http1Response(status, self._headers, self, self._loop)
        if not head.done():
            head.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._unproductive_bytes = 0
        if self._response is not None:
            self._response.take(body)

    def on_message_complete(self) -> None:
        """The answer is whole: the connection is free, if it may be used again."""
        if self._interim:
            self._interim = False
            return
        response, self._response = self._response, None
        if response is None:
            return
        transport = cast(asyncio.Transport, self._transport)
        response.finish()
        self.answered += 1
        if self._paused:
            self.resume()
        # A request that is not sent whole (the answer came early) would be cut by the next one.
        sent_whole = transport.get_write_buffer_size() == 0
        if self._parser.should_keep_alive() and sent_whole and not transport.is_closing():
            # Free only once the rest of what was read is looked at: there must be none.
            self._is_free = True
        else:
            self._close()

    # Own.

    def _ended(self, *, well: bool) -> None:
        """End the answer under way: well only where its head left the end to the connection's."""
        response = self._response
        if response is not None and well and _ends_with_connection(self._headers):
            self._response = None
            response.finish()
        self._fail(UpstreamConnectError(_BROKEN))

    def _look_for_silence(self) -> None:
        """One timer serves many answers: it looks when the last byte came, and sleeps on."""
        self._timer = None
        if self.closed or (self._head is None and self._response is None):
            return
        now = self._loop.time()
        due = (now if self._paused else self._last_byte) + self._silence_seconds
        if due <= now:
            self._fail(UpstreamTimeoutError(_SILENT))
        else:
            self._timer = self._loop.call_at(due, self._look_for_silence)

    def _fail(self, error: UpstreamError) -> None:
        head, response = self._head, self._response
        self._head = self._response = None
        if head is not None and not head.done():
            head.set_exception(error)
        if response is not None:
            response.finish(error)
        self._close()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._on_closed(self)

    def _too_much(self) -> UpstreamConnectError:
        return UpstreamConnectError(
            f"The engine sent more than {self._max_head_bytes} bytes of head, trailers or chunk extensions."
        )

    def _nothing_arrived(self) -> bool:
        """Whether the engine's kernel has acknowledged none of the request (TCP only; if in doubt: no)."""
        transport = cast(asyncio.Transport, self._transport)
        if transport.get_extra_info("ssl_object") is not None:
            return False
        try:
            descriptor = transport.get_extra_info("socket").fileno()
            (unacknowledged,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
        except (OSError, AttributeError):
            return False
        in_kernel = self._sent_bytes - transport.get_write_buffer_size()
        return bool(unacknowledged >= in_kernel)


class _FaultError(Exception):
    """What is wrong with an answer, one clause."""


def _ends_with_connection(headers: dict[str, str]) -> bool:
    return "content-length" not in headers and "transfer-encoding" not in headers
