"""The relay: one client request from admission to the last byte, its retry, its metrics and its log line.

Owns the order of things; the steps are in the other modules of this folder. Framework-free: it is given an
`Incoming` and a `Sink`, so a route of any kind can call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from structuredllm_gateway.admission.admission import Admission, Unenforced, judge_unenforced
from structuredllm_gateway.admission.expectations import expect
from structuredllm_gateway.admission.frames import Frame, FrameMemory
from structuredllm_gateway.admission.keywords import is_trusting
from structuredllm_gateway.admission.limits import ClientClosedError, ConcurrencyLimit
from structuredllm_gateway.admission.schema_policy import admit
from structuredllm_gateway.errors import GatewayError, ModelNotFoundError, NoEndpointError, RequestError
from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.openai.errors import error_bytes
from structuredllm_gateway.openai.requests import body_object, read_request
from structuredllm_gateway.relay.attempts import Attempts
from structuredllm_gateway.relay.delivery import (
    EVENT_STREAM,
    STREAM_HEADERS,
    Deliveries,
    Heartbeats,
    HeldBytes,
    HeldSink,
    give_out,
    is_held,
    refuse_in_stream,
)
from structuredllm_gateway.relay.exchange import (
    Exchange,
    Incoming,
    Record,
    Sink,
    TryResult,
    response_headers,
)
from structuredllm_gateway.relay.raw_text import wanted_chars
from structuredllm_gateway.relay.repair import UNDER_WAY, repaired_exchange
from structuredllm_gateway.relay.tries import Tries
from structuredllm_gateway.replicas.roster import Roster
from structuredllm_gateway.settings import Settings
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.telemetry.request_log import LineWriter, through
from structuredllm_gateway.upstream.client import UpstreamClient
from structuredllm_gateway.upstream.endpoints import EndpointSource, ModelPool
from structuredllm_gateway.validation.outcomes import Outcome
from structuredllm_gateway.validation.validators import ValidatorCache


class Relay:
    """Answers completion requests."""

    def __init__(
        self,
        *,
        settings: Settings,
        upstream: UpstreamClient,
        endpoints: EndpointSource,
        roster: Roster,
        metrics: Metrics,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        line: LineWriter | None = None,
    ) -> None:
        """Take the ports; `clock` is monotonic seconds, `line` writes requests' lines (default: `log`)."""
        self._settings = settings
        self._total_seconds = settings.upstream.total_timeout_seconds
        self._max_raw_chars = settings.validation.max_raw_chars
        self._endpoints = endpoints
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._line = line if line is not None else through(log)
        tries = Deliveries(Tries(upstream, settings.upstream, clock))
        self._attempts = Attempts(roster, tries, settings=settings, metrics=metrics, clock=clock)
        self._held = HeldBytes(
            settings.validation.max_held_bytes,
            settings.validation.max_held_bytes_total,
            settings.limits.retry_after_seconds,
        )
        metrics.held_stream_bytes.set_function(lambda: self._held.total)
        self._limit = ConcurrencyLimit(
            settings.limits.max_inflight_requests, settings.limits.retry_after_seconds
        )
        self._validators = ValidatorCache(
            settings.validation.cached_schemas,
            max_bytes=settings.validation.cached_schema_bytes,
            assert_formats=settings.validation.assert_formats,
        )
        self._admission = Admission(settings.admission.limits, settings.admission.remembered_parts)
        self._frames = FrameMemory(settings.admission.remembered_parts, self._admission.read_fields)

    async def respond(self, incoming: Incoming, sink: Sink) -> None:
        """Answer one request, whatever happens; cancel it to say that the client has gone."""
        record = Record(started=self._clock())
        self._metrics.inflight_requests.inc()
        try:
            with self._limit.slot():
                body = incoming.body if incoming.read_body is None else await incoming.read_body()
                exchange = self._admitted(incoming, body, record)
                if is_held(exchange):
                    await self._held_back(exchange, sink)
                else:
                    await self._sent(exchange, await self._tried(exchange, sink), sink)
        except GatewayError as error:
            if isinstance(error, RequestError) and record.attempts == 0:
                self._metrics.refusals.labels(error.code).inc()
            await self._refused(incoming, record, error, sink)
        except ClientClosedError:
            return
        except asyncio.CancelledError:
            record.outcome, record.status = Outcome.CLIENT_CLOSED, 499
            raise
        except Exception:
            self._log.exception("request_failed", request_id=incoming.request_id)
            unexpected = GatewayError("The gateway failed; its log has the cause under this request's id.")
            await self._refused(incoming, record, unexpected, sink)
        finally:
            self._metrics.inflight_requests.dec()
            self._report(incoming, record)

    def _admitted(self, incoming: Incoming, body: bytes, record: Record) -> Exchange:
        whole = body_object(body)
        if isinstance(name := whole.get("model"), str):
            record.model = name
        key = self._frames.key(whole, incoming.route)
        frame = self._frames.get(key)
        if frame is not None:
            self._admission.check_shape(body, whole)
            request, unenforced = frame.request, frame.unenforced
        else:
            unenforced = self._admission.check(body, whole)
            request = read_request(body, whole, incoming.route)
        record.model, record.stream = request.model, request.stream
        record.structured = request.is_structured
        if request.warnings:
            record.warnings.extend(request.warnings)
        incoming.visit.model = self._metrics.model_label(request.model)
        incoming.visit.grant.admit(request.model, body)
        view = self._endpoints.snapshot()
        pool = view.pools.get(request.model)
        if pool is None and not view.synced:
            raise NoEndpointError(
                "The gateway has just started and does not know yet which models there are. Try again later.",
                code="discovering",
                retry_after_seconds=self._settings.limits.retry_after_seconds,
            )
        if pool is None:
            raise ModelNotFoundError(
                f"The model {request.model[:128]!r} does not exist here; GET /v1/models lists those that do.",
                param="model",
            )
        self._note_unenforced(unenforced, pool, record)
        if frame is not None:
            expected = frame.expected
        else:
            expected = expect(request, lambda asked: admit(asked, self._validators))
            self._frames.keep(key, Frame(request, unenforced, expected))
        record.schema_key = expected.key if expected is not None else None
        deadline = record.started + self._total_seconds
        sent = body if request.rewritten is None else request.rewritten
        raw_chars = wanted_chars(incoming.headers, self._max_raw_chars)
        exchange = Exchange(incoming, request, sent, pool, expected, deadline, record, raw_chars=raw_chars)
        if expected is not None and (expected.unvalidated or not exchange.is_judged):
            record.unvalidated = expected.unvalidated if exchange.is_judged else "off"
        return exchange

    def _note_unenforced(self, found: tuple[Unenforced, ...], pool: ModelPool, record: Record) -> None:
        if not found or not is_trusting(pool.structured.backends):
            return
        for keyword in {item.keyword for item in found}:
            self._metrics.unenforced_keywords.labels(pool.model, keyword).inc()
        record.warnings += judge_unenforced(found, self._settings.validation.unenforced_keywords)

    async def _held_back(self, exchange: Exchange, sink: Sink) -> None:
        held = HeldSink(self._held)
        patience = self._settings.upstream.stream_idle_timeout_seconds
        try:
            async with Heartbeats(exchange, sink, self._settings.validation.heartbeat_seconds, patience):
                result = await self._tried(exchange, held)
            await self._sent(exchange, result, sink)
        finally:
            held.clear()

    async def _tried(self, exchange: Exchange, sink: Sink) -> TryResult:
        result = await self._attempts.run(exchange, sink)
        if result.error is None:
            return result
        repaired = repaired_exchange(exchange, result, self._clock())
        if repaired is None:
            return result
        record = exchange.record
        record.repair = UNDER_WAY
        record.retried_for.append(result.outcome.value)
        result = await self._attempts.run(repaired, sink)
        record.repair = result.outcome.value
        model = self._metrics.model_label(exchange.request.model)
        self._metrics.repairs.labels(model, record.repair).inc()
        return result

    async def _sent(self, exchange: Exchange, result: TryResult, sink: Sink) -> None:
        record = exchange.record
        record.outcome = result.outcome
        if result.error is not None:
            record.error_code = result.error.code
        if result.committed:
            return
        if result.error is not None:
            raise result.error
        assert result.answer is not None  # noqa: S101 - narrows the type: neither sent nor refused
        answer = result.answer
        if answer.content_type == EVENT_STREAM:
            # Held until now: this is when the client gets its first part.
            record.first_token_seconds = self._clock() - record.started
            record.status = answer.status
            if not sink.started:
                await sink.start(
                    answer.status, {**STREAM_HEADERS, **response_headers(record, result.outcome)}
                )
            await give_out(answer.body, sink)
            return
        record.status = answer.status
        headers = response_headers(record, result.outcome)
        await sink.start(
            answer.status,
            {"content-type": answer.content_type, "content-length": str(len(answer.body)), **headers},
        )
        await sink.write(answer.body)
        await sink.end()

    async def _refused(self, incoming: Incoming, record: Record, error: GatewayError, sink: Sink) -> None:
        record.outcome, record.error_code = error.outcome, error.code
        if sink.started:
            await refuse_in_stream(error, incoming, sink)
            return
        record.status = error.status
        body = error_bytes(error, incoming.request_id)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **response_headers(record, error.outcome),
        }
        if error.retry_after_seconds is not None:
            headers["retry-after"] = str(error.retry_after_seconds)
        if isinstance(error, KeyRefusedError):
            self._metrics.key_refusals.labels(error.reason).inc()
            headers.update(error.headers)
        if error.status in (408, 413):
            # The rest of the body is not read, so the connection cannot carry another request.
            headers["connection"] = "close"
        await sink.start(error.status, headers)
        await sink.write(body)
        await sink.end()

    def _report(self, incoming: Incoming, record: Record) -> None:
        seconds = self._clock() - record.started
        visit = incoming.visit
        model, route = visit.model or self._metrics.model_label(record.model), incoming.route.value
        outcome = record.outcome.value
        self._metrics.requests.labels(model, route, str(record.status), outcome).inc()
        self._metrics.visited(visit, model, route, seconds)
        if record.unvalidated and record.outcome is Outcome.PLAIN:
            self._metrics.unvalidated.labels(model, record.unvalidated).inc()
        if record.first_token_seconds is not None:
            self._metrics.time_to_first_token.labels(model).observe(record.first_token_seconds)
        first = record.first_token_seconds
        self._line(
            {
                "request_id": incoming.request_id,
                "trace_id": visit.trace_id or None,
                "key": incoming.caller.name if incoming.caller is not None else None,
                "route": route,
                "model": model,
                "stream": record.stream,
                "structured": record.structured,
                "schema": record.schema_key,
                "status": record.status,
                "outcome": outcome,
                "error_code": record.error_code,
                "attempts": record.attempts,
                "retried_for": record.retried_for,
                "repair": record.repair,
                "replica": record.replica,
                "fsm_errors": record.fsm_errors,
                "ttft_seconds": None if first is None else round(first, 4),
                "duration_seconds": round(seconds, 4),
                "upstream_seconds": round(visit.upstream_seconds, 4),
                "client_seconds": round(visit.client_seconds, 4),
                "prompt_tokens": visit.prompt_tokens,
                "completion_tokens": visit.completion_tokens,
            }
        )
