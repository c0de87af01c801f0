"""One request that is answered without ASGI: it is here whole, and its answer goes out in one write.

Owns what stands where uvicorn has its `RequestResponseCycle`, with the names that uvicorn's protocol reads
and sets on one, and the writing of HTTP/1.1 answers. What is answered is the route's (`routes.direct`). A
large part of a request's cost was between the two: messages as dictionaries, events, wrappers of channels.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from structuredllm_gateway.passage import Passage
from structuredllm_gateway.routes.direct import DirectRoute, RawHeaders

# What RFC 9110 forbids in a field's value; a value that is printable has none of it.
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LAST_CHUNK = b"0\r\n\r\n"
_FAILED = b"Internal Server Error"


class DirectCall:
    """One request and its answer; a `Sink`.

    Attributes:
        started, response_started: the answer has begun: it cannot be taken back.
        response_complete: it is given.
        disconnected: the client has gone; nothing more is written.
        gone: the client has gone before its answer was given; the task was cancelled then.
        keep_alive: whether the connection may carry another request.
        passage: measures the answer; set by the route.
    """

    __slots__ = (
        "_defaults",
        "_flow",
        "_has_begun",
        "_head",
        "_left",
        "_on_complete",
        "disconnected",
        "gone",
        "keep_alive",
        "more_body",
        "passage",
        "response_complete",
        "response_started",
        "started",
        "task",
        "transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        defaults: list[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
        on_complete: Callable[[], None],
    ) -> None:
        """Prepare; `defaults` are the server's own header fields, `on_complete` is told of the last byte."""
        self.transport = transport
        self._flow = flow
        self._defaults = defaults
        self._on_complete = on_complete
        self.keep_alive = keep_alive
        self._head = b""
        # Bytes of the declared length that are not written yet; None = chunks.
        self._left: int | None = None
        self.started = self.response_started = self.response_complete = False
        self.disconnected = self.gone = self.more_body = False
        self.passage: Passage | None = None
        self._has_begun = False
        self.task: asyncio.Task[None] | None = None

    # What uvicorn's protocol does with a cycle.

    @property
    def message_event(self) -> DirectCall:
        """Uvicorn sets this event when the client has gone, or when more of the body has come."""
        return self

    def set(self) -> None:
        """The event is set."""
        if self.disconnected and not self.response_complete and not self.gone:
            self.gone = True
            if self._has_begun and self.task is not None:
                # Before that the route sees for itself, and says so like of every other request.
                self.task.cancel()

    async def run(self, route: DirectRoute, headers: RawHeaders, body: bytes) -> None:
        """Answer; whatever happens there is an answer, or the connection is closed."""
        self._has_begun = True
        try:
            await route.answer(self, headers, body)
        except BaseException as error:
            if not self.gone:
                logging.getLogger("uvicorn.error").error("Exception in a direct route", exc_info=error)
                if not self.started:
                    self.keep_alive = False
                    await self.start(500, {"content-type": "text/plain", "content-length": str(len(_FAILED))})
                    await self.write(_FAILED)
        finally:
            if not self.response_complete and not self.disconnected:
                self.transport.close()

    # The sink.

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Sink.start`; the head goes out with the first part."""
        passage = self.passage
        fields = headers if passage is None else {**headers, **passage.fields()}
        text = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        if not "".join(fields.values()).isprintable() and any(map(_FORBIDDEN.search, fields.values())):
            raise ValueError("a header field has a control character in it")
        length = headers.get("content-length")
        if length is None:
            text += "transfer-encoding: chunked\r\n"
        else:
            self._left = int(length)
        if headers.get("connection") == "close":
            self.keep_alive = False
        elif not self.keep_alive:
            text += "connection: close\r\n"
        parts = [STATUS_LINE[status]]
        for name, value in self._defaults:
            parts += (name, b": ", value, b"\r\n")
        parts += (text.encode("latin-1"), b"\r\n")
        self._head = b"".join(parts)
        self.started = self.response_started = True
        if passage is not None:
            passage.status = status
            passage.is_stream = headers.get("content-type", "").startswith("text/event-stream")

    async def write(self, data: bytes) -> None:
        """See `Sink.write`; with the last declared byte the answer is ended, too."""
        if self.passage is not None and data:
            self.passage.part(data)
        if self._flow.write_paused and not self.disconnected:
            await self._drained()
        head, self._head = self._head, b""
        if self._left is None:
            if data:
                self._send(b"%b%x\r\n%b\r\n" % (head, len(data), data))
            elif head:
                self._send(head)
            return
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("the answer is longer than its declared length")
        if self._left:
            self._send(head + data)
        else:
            self._last(head + data)

    async def end(self) -> None:
        """See `Sink.end`."""
        if self.response_complete or not self.started:
            return
        if self._flow.write_paused and not self.disconnected:
            await self._drained()
        head, self._head = self._head, b""
        if self._left:
            raise ValueError("the answer is shorter than its declared length")
        self._last(head + _LAST_CHUNK if self._left is None else head)

    def _send(self, data: bytes) -> None:
        if not self.disconnected:
            self.transport.write(data)

    def _last(self, data: bytes) -> None:
        if self.passage is not None:
            self.passage.settle()
        if self.disconnected:
            return
        if data:
            self.transport.write(data)
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self._on_complete()

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        await self._flow.drain()
        if self.passage is not None:
            self.passage.visit.client_seconds += loop.time() - since
