"""Delivery of structured streams: at once (Trailing), or held until they are judged (Buffer).

Owns the holding: a sink in memory that takes the place of the client's, its bounds, and the heartbeats that
keep the client's connection alive meanwhile. A held stream is an ordinary answer to the relay: nothing of it
was sent, so it can be refused with a status and tried again. The first heartbeat sends the status 200; from
then on a refusal is an error event (see docs/adr/0009-streams-trailing-or-held.md). Must not import a web
framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from structuredllm_gateway.admission.limits import ClientClosedError
from structuredllm_gateway.errors import GatewayError, OverloadedError, UpstreamStatusError
from structuredllm_gateway.relay.closing import closing_events
from structuredllm_gateway.relay.exchange import Answer, Exchange, Incoming, Sink, TryResult, response_headers
from structuredllm_gateway.upstream.endpoints import Endpoint, StreamDelivery
from structuredllm_gateway.validation.outcomes import Outcome

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS: Mapping[str, str] = {
    "content-type": EVENT_STREAM,
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
HEARTBEAT = b": structuredllm holding\n\n"
_PIECE_BYTES = 64 * 1024


class TryMaker(Protocol):
    """Makes single tries (`relay.tries.Tries`)."""

    async def whole(self, exchange: Exchange, endpoint: Endpoint) -> TryResult:
        """Ask for an answer that is not streamed."""
        ...

    async def stream(self, exchange: Exchange, endpoint: Endpoint, sink: Sink) -> TryResult:
        """Ask for a stream and pass it on."""
        ...


class Deliveries:
    """Makes tries like the `TryMaker` below it; a stream into a `HeldSink` comes back as an answer."""

    def __init__(self, tries: TryMaker) -> None:
        """Take what makes the tries."""
        self._tries = tries
        self.whole = tries.whole

    async def stream(self, exchange: Exchange, endpoint: Endpoint, sink: Sink) -> TryResult:
        """See `TryMaker.stream`."""
        if isinstance(sink, HeldSink):
            return await sink.one_try(self._tries, exchange, endpoint)
        return await self._tries.stream(exchange, endpoint, sink)


def is_held(exchange: Exchange) -> bool:
    """Whether the answer is a stream that is given out only once it is judged."""
    held = exchange.pool.structured.streaming is StreamDelivery.BUFFER
    return held and exchange.request.stream and exchange.is_judged


class HeldBytes:
    """What all held streams of the process occupy, bounded."""

    def __init__(self, max_bytes: int, max_bytes_total: int, retry_after_seconds: int) -> None:
        """Start with nothing held; the first bound is for one stream, the second for all."""
        self._max_bytes = max_bytes
        self._max_bytes_total = max_bytes_total
        self._retry_after_seconds = retry_after_seconds
        self.total = 0

    def take(self, share: int, more: int) -> None:
        """Count `more` bytes to a stream that already holds `share`.

        Raises:
            UpstreamStatusError: the stream is above its bound.
            OverloadedError: all together are above theirs.
        """
        if share + more > self._max_bytes:
            raise UpstreamStatusError(
                f"The engine's stream is longer than {self._max_bytes} bytes, which is what is held for "
                "validation here.",
                status=502,
                type_="server_error",
                outcome=Outcome.UPSTREAM_5XX,
                code="upstream_too_large",
            )
        if self.total + more > self._max_bytes_total:
            raise OverloadedError(
                "The gateway holds as many bytes of streams for validation as it may; try again later.",
                retry_after_seconds=self._retry_after_seconds,
            )
        self.total += more

    def give_back(self, share: int) -> None:
        """Uncount what a stream held."""
        self.total -= share


class HeldSink:
    """A `Sink` in memory: takes one try's stream after the other and keeps the last."""

    def __init__(self, held: HeldBytes) -> None:
        """Start empty."""
        self._held = held
        self._parts: list[bytes] = []
        self._size = 0
        self.started = False
        self._refusal: GatewayError | None = None

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Sink.start`; the head is written when the stream is given out."""
        self.started = True

    async def write(self, data: bytes) -> None:
        """See `Sink.write`; above a bound the try is over."""
        if self._refusal is not None:
            return
        try:
            self._held.take(self._size, len(data))
        except GatewayError as error:
            self._refusal = error
            raise
        self._parts.append(data)
        self._size += len(data)

    async def end(self) -> None:
        """See `Sink.end`."""

    def clear(self) -> None:
        """Forget what is held."""
        self._held.give_back(self._size)
        self._parts, self._size, self.started, self._refusal = [], 0, False, None

    async def one_try(self, tries: TryMaker, exchange: Exchange, endpoint: Endpoint) -> TryResult:
        """Make one try into this sink; its result is uncommitted, like that of a whole answer."""
        self.clear()
        try:
            result = await tries.stream(exchange, endpoint, self)
        except (UpstreamStatusError, OverloadedError) as error:
            result = TryResult(error.outcome, error=error)
        if self._refusal is not None:
            result = TryResult(self._refusal.outcome, error=self._refusal)
        if not result.committed:
            return result
        answer = None if result.error is not None else Answer(200, b"".join(self._parts), EVENT_STREAM)
        if answer is not None:
            self._parts.clear()  # the joined bytes are the ones that count from here
        return TryResult(result.outcome, answer, error=result.error, upstream_status=result.upstream_status)


class Heartbeats:
    """Comments to a client whose stream is held, until the context ends."""

    def __init__(self, exchange: Exchange, sink: Sink, every_seconds: float, patience_seconds: float) -> None:
        """Prepare; a client that does not read for `patience_seconds` counts as gone (ClientClosedError)."""
        self._exchange = exchange
        self._sink = sink
        self._every_seconds = every_seconds
        self._patience_seconds = patience_seconds
        self._stop = asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def __aexit__(self, *_: object) -> None:
        # Not cancelled in the middle of a write: half a head or half an event would spoil what follows.
        self._stop.set()
        try:
            async with asyncio.timeout(self._patience_seconds):
                await asyncio.shield(self._task)
        except BaseException as error:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task
            if isinstance(error, TimeoutError):
                raise ClientClosedError from error
            raise

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_seconds):
                    await self._stop.wait()
                    return
            if not self._sink.started:
                self._exchange.record.status = 200
                headers = {**STREAM_HEADERS, **response_headers(self._exchange.record, None)}
                await self._sink.start(200, headers)
            await self._sink.write(HEARTBEAT)


async def give_out(stream: bytes, sink: Sink) -> None:
    """Send a held stream in pieces, so that a client that reads slowly is waited for."""
    view = memoryview(stream)
    for start in range(0, len(stream), _PIECE_BYTES):
        await sink.write(bytes(view[start : start + _PIECE_BYTES]))
    await sink.end()


async def refuse_in_stream(error: GatewayError, incoming: Incoming, sink: Sink) -> None:
    """End a stream whose status was sent: the error, the verdict, the end mark where the route has one."""
    await sink.write(closing_events(incoming.route, error.outcome, error, incoming.request_id))
    await sink.end()
