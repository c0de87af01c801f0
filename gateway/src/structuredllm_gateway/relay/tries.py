"""One try on one endpoint: send, read under deadlines, hand the answer to the classification.

Owns the I/O of a try. A failure that can still be taken back comes out as a `TryResult` without
`committed`; once a byte of a stream is sent, the try ends the client's stream itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from structuredllm_gateway.errors import (
    StreamAbortedError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamStatusError,
    UpstreamTimeoutError,
)
from structuredllm_gateway.relay.classify import classify_whole
from structuredllm_gateway.relay.deadlines import Deadlines
from structuredllm_gateway.relay.delivery import STREAM_HEADERS
from structuredllm_gateway.relay.exchange import Exchange, Route, Sink, TryResult, response_headers
from structuredllm_gateway.relay.streams import StreamRelay
from structuredllm_gateway.settings import UpstreamSettings
from structuredllm_gateway.telemetry.visit import Visit
from structuredllm_gateway.upstream.client import UpstreamClient, UpstreamResponse
from structuredllm_gateway.upstream.endpoints import Endpoint
from structuredllm_gateway.validation.outcomes import Outcome

# What of a client's headers an engine gets: no credentials, no cookies, nothing hop-by-hop.
_FORWARDED = ("traceparent", "tracestate", "accept")
_DRAIN_SECONDS = 0.5
_PATHS = {route: route.path for route in Route}


class Tries:
    """Makes tries."""

    def __init__(
        self, client: UpstreamClient, settings: UpstreamSettings, clock: Callable[[], float]
    ) -> None:
        """Take the port to the engines; `clock` is monotonic seconds."""
        self._client = client
        self._settings = settings
        self._clock = clock
        self._deadlines = Deadlines()

    async def whole(self, exchange: Exchange, endpoint: Endpoint) -> TryResult:
        """Ask for an answer that is not streamed."""
        try:
            with (
                self._deadlines.within(self._try_seconds(exchange)),
                _Waits(exchange.incoming.visit, self._clock) as waits,
            ):
                response = await self._post(exchange, endpoint)
                try:
                    body = await self._read(response)
                    waits.pause()
                    return self._classified(exchange, response, body)
                finally:
                    await response.aclose()
        except TimeoutError:
            return _failed(self._timed_out())
        except UpstreamError as error:
            return _failed(error)

    async def stream(self, exchange: Exchange, endpoint: Endpoint, sink: Sink) -> TryResult:
        """Ask for a stream, and pass it on from its first part of an answer."""
        relay = StreamRelay(exchange, self._settings.max_answer_bytes)
        status: int | None = None
        try:
            async with asyncio.timeout(self._try_seconds(exchange)) as limit:
                with _Waits(exchange.incoming.visit, self._clock):
                    response = await self._post(exchange, endpoint)
                status = response.status
                try:
                    if status != 200 or not _is_event_stream(response):
                        with _Waits(exchange.incoming.visit, self._clock):
                            body = await self._read(response)
                        return self._classified(exchange, response, body)
                    await self._pass_on(exchange, response, relay, sink, limit)
                    if relay.error is None:
                        result = await self._closed(relay, sink, status)
                        with _Waits(exchange.incoming.visit, self._clock):
                            await _drain(response)
                        return result
                finally:
                    await response.aclose()
        except TimeoutError:
            relay.fail(self._timed_out())
        except UpstreamError as error:
            # Broken with bytes of an answer under way is another class than never reached.
            broken = sink.started or (status is not None and isinstance(error, UpstreamConnectError))
            relay.fail(StreamAbortedError("The engine's stream broke off.") if broken else error)
        return await self._closed(relay, sink, status)

    async def _pass_on(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        relay: StreamRelay,
        sink: Sink,
        limit: asyncio.Timeout,
    ) -> None:
        """Move bytes until the relay has ended; from the first byte out, the limit is one on silence."""
        loop = asyncio.get_running_loop()
        idle = self._settings.stream_idle_timeout_seconds

        async def give(data: bytes) -> None:
            ended_well = relay.ended and relay.error is None
            if not data and not ended_well:
                return
            if not sink.started:
                record = exchange.record
                record.first_token_seconds = self._clock() - record.started
                record.status = 200
                await sink.start(200, {**STREAM_HEADERS, **response_headers(record, None)})
            await sink.write(data)

        with _Waits(exchange.incoming.visit, self._clock) as waits:
            async for chunk in response.chunks():
                waits.pause()
                await give(relay.feed(chunk))
                if relay.ended:
                    return
                if sink.started:
                    left = exchange.deadline - self._clock()
                    limit.reschedule(loop.time() + max(0.0, min(idle, left)))
                waits.go_on()
            waits.pause()
            await give(relay.finish())

    async def _closed(self, relay: StreamRelay, sink: Sink, status: int | None) -> TryResult:
        """Give out the last events, when any was before; a client that does not read them is left."""
        if sink.started:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stream_idle_timeout_seconds):
                    await sink.write(relay.closing())
                    await sink.end()
        return TryResult(relay.outcome, error=relay.error, committed=sink.started, upstream_status=status)

    def _post(self, exchange: Exchange, endpoint: Endpoint) -> Awaitable[UpstreamResponse]:
        incoming = exchange.incoming
        given = incoming.headers
        headers: dict[str, str] = {}
        for name in _FORWARDED:
            value = given.get(name)
            if value is not None:
                headers[name] = value
        headers["content-type"] = "application/json"
        headers["x-request-id"] = incoming.request_id
        url = endpoint.url + _PATHS[incoming.route]
        return self._client.post(url, body=exchange.body, headers=headers)

    async def _read(self, response: UpstreamResponse) -> bytes:
        """Return the whole body of an answer, which is bounded."""
        parts: list[bytes] = []
        size = 0
        async for chunk in response.chunks():
            size += len(chunk)
            if size > self._settings.max_answer_bytes:
                raise UpstreamStatusError(
                    f"The engine's answer is larger than {self._settings.max_answer_bytes} bytes.",
                    status=502,
                    type_="server_error",
                    outcome=Outcome.UPSTREAM_5XX,
                    code="upstream_too_large",
                )
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _classified(self, exchange: Exchange, response: UpstreamResponse, body: bytes) -> TryResult:
        return classify_whole(
            exchange,
            response.status,
            body,
            response.headers.get("content-type", "application/json"),
            response.headers.get("retry-after"),
        )

    def _try_seconds(self, exchange: Exchange) -> float:
        left = exchange.deadline - self._clock()
        return max(0.0, min(self._settings.try_timeout_seconds, left))

    def _timed_out(self) -> UpstreamTimeoutError:
        return UpstreamTimeoutError("The engine did not answer within the time allowed.")


class _Waits:
    """The time in which an engine is waited for, counted in a request's visit."""

    __slots__ = ("_clock", "_since", "_visit")

    def __init__(self, visit: Visit, clock: Callable[[], float]) -> None:
        self._visit = visit
        self._clock = clock

    def __enter__(self) -> Self:
        self._since: float | None = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """The engine has sent something: what is done with it is not its time."""
        if self._since is not None:
            self._visit.upstream_seconds += self._clock() - self._since
            self._since = None

    def go_on(self) -> None:
        """Nothing is left to do until it sends more."""
        self._since = self._clock()


def _failed(error: UpstreamError) -> TryResult:
    return TryResult(error.outcome, error=error)


def _is_event_stream(response: UpstreamResponse) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


async def _drain(response: UpstreamResponse) -> None:
    """Read the few bytes after the end mark, so that the connection can be used again."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in response.chunks():
                pass
    except (TimeoutError, UpstreamError):
        return
