"""A stream on its way through: events pass as they come, the answer is put together beside them and judged.

Owns the decisions inside one stream; does no I/O itself (`relay.tries` reads and writes). Until the first
part of an answer is there, nothing is given out: up to then the try can be taken back and made on another
replica. A chat stream starts with a chunk that only names the role, so this costs a client nothing it could
use.
"""

from __future__ import annotations

from typing import Any

import orjson

from structuredllm_gateway.errors import (
    GatewayError,
    StreamAbortedError,
    StreamEmptyError,
    UpstreamStreamError,
)
from structuredllm_gateway.openai.answers import Assembler, MalformedAnswerError, StreamAssembler
from structuredllm_gateway.openai.errors import engine_error
from structuredllm_gateway.openai.responses import ResponsesAssembler
from structuredllm_gateway.openai.sse import EventTooLongError, SseEvent, SseParser
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.relay.classify import stream_error, verdict_error
from structuredllm_gateway.relay.closing import closing_events
from structuredllm_gateway.relay.exchange import Exchange
from structuredllm_gateway.validation.judge import judge
from structuredllm_gateway.validation.outcomes import Outcome

MAX_EVENT_BYTES = 4 * 1024 * 1024
# More than this before the first part of an answer (comments, empty chunks) is given out as it is.
_MAX_HELD_BYTES = 256 * 1024


class StreamRelay:
    """The state of one try's stream.

    Attributes:
        has_content: whether a part of the answer has been seen, so that bytes are given out.
        ended: whether the verdict is made.
        outcome: the verdict, once `ended`.
        error: the refusal, once `ended`; None when the stream may end well.
    """

    def __init__(self, exchange: Exchange, max_answer_chars: int) -> None:
        """Start with nothing seen."""
        self._exchange = exchange
        self._parser = SseParser(MAX_EVENT_BYTES)
        self._assembler = _assembler(exchange, max_answer_chars)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._has_given = False
        self.has_content = False
        self.ended = False
        self.outcome = Outcome.STREAM_ERROR
        self.error: GatewayError | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes of the engine, return those for the client; stops at the end mark or the first error."""
        try:
            for event in self._parser.feed(chunk):
                self._take(event)
                if self.ended:
                    break
        except (EventTooLongError, MalformedAnswerError) as error:
            self._fail(UpstreamStreamError(f"The engine's stream cannot be read: {error}."))
        return self._released()

    def finish(self) -> bytes:
        """The engine's stream is over: decide, if the end mark did not; return what is left to pass."""
        try:
            rest = None if self.ended else self._parser.finish()
            # What was cut in the middle is no event: no client could read it. If the answer was whole before
            # (it was an end mark, or usage), it does not matter.
            if rest is not None and not _is_cut(rest):
                self._take(rest)
            if not self.ended and self._assembler.is_finished:
                self._judge()
        except MalformedAnswerError as error:
            self._fail(UpstreamStreamError(f"The engine's stream cannot be read: {error}."))
        if not self.ended:
            self._fail(self._too_early())
        return self._released()

    def fail(self, error: GatewayError) -> None:
        """The engine's stream broke or took too long."""
        if not self.ended:
            self._fail(error)

    def closing(self) -> bytes:
        """Return the last events: the error if there is one, the verdict, OpenAI's end mark."""
        incoming = self._exchange.incoming
        return closing_events(incoming.route, self.outcome, self.error, incoming.request_id)

    def _take(self, event: SseEvent) -> None:
        if event.is_done:
            # Without a reason to have ended, an answer is not known to be whole, end mark or not.
            if self._exchange.is_judged and not self._assembler.is_finished:
                self._fail(self._too_early())
            else:
                self._judge()
            return
        if event.data is not None and not self._is_passed_unread(event.data):
            payload = self._payload(event.data)
            found = engine_error(payload)
            if found is not None:
                self._fail(stream_error(self._exchange, found))
                return
            if payload is None or self._assembler.feed(payload):
                self.has_content = True
            if self._assembler.ends_stream:
                self._judge()
                if self.error is not None:
                    return  # the event says "completed"
        self._held.append(event.raw)
        self._held_bytes += len(event.raw)

    def _is_passed_unread(self, data: bytes) -> bool:
        """After the first part, unjudged chunks are not parsed unless they may be an error or an end."""
        return self.has_content and not self._exchange.is_judged and not self._assembler.matters(data)

    def _payload(self, data: bytes) -> dict[str, Any] | None:
        """Return an event's JSON object; None for other data, which passes only where nothing is judged."""
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            payload = error
        if isinstance(payload, dict):
            return payload
        if self._exchange.is_judged:
            raise MalformedAnswerError("an event is not a JSON object")
        return None

    def _judge(self) -> None:
        self.ended = True
        expected = self._exchange.expected if self._exchange.is_judged else None
        if expected is None:
            self.outcome = Outcome.PLAIN
            return
        choices = self._assembler.choices()
        verdict = judge(choices, expected)
        self.outcome = verdict.outcome
        self.error = verdict_error(self._exchange, verdict, choices)

    def _too_early(self) -> GatewayError:
        if not self.has_content:
            return StreamEmptyError("The engine's stream ended without any part of an answer.")
        return StreamAbortedError("The engine's stream ended before the answer was complete.")

    def _fail(self, error: GatewayError) -> None:
        self.ended = True
        self.outcome, self.error = error.outcome, error

    def _released(self) -> bytes:
        if not self._has_given and self.error is not None:
            # Nothing was given out: all of it can be taken back, although a part of an answer is there.
            return b""
        if not (self.has_content or self.ended or self._held_bytes > _MAX_HELD_BYTES):
            return b""
        self._has_given = True
        released = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return released


def _is_cut(event: SseEvent) -> bool:
    try:
        return event.data is not None and not event.is_done and not isinstance(orjson.loads(event.data), dict)
    except orjson.JSONDecodeError:
        return True


def _assembler(exchange: Exchange, max_chars: int) -> Assembler:
    if exchange.incoming.route is Route.RESPONSES:
        return ResponsesAssembler(max_chars, keeps=exchange.is_judged)
    return StreamAssembler(max_chars, keeps=exchange.is_judged)
