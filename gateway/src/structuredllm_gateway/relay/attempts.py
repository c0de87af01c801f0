"""The tries of one request: wait for a first replica, pick, try, and where class and budget allow try again.

Owns the order of those steps and what is told to the roster of each try; a single try is in `tries`, the
rules are in `upstream.retry` and `replicas`.
"""

from __future__ import annotations

from collections.abc import Callable

from structuredllm_gateway.errors import NoEndpointError
from structuredllm_gateway.relay.delivery import TryMaker
from structuredllm_gateway.relay.exchange import Exchange, Sink, TryResult
from structuredllm_gateway.replicas.affinity import affinity_key
from structuredllm_gateway.replicas.blame import Blame, blame_of
from structuredllm_gateway.replicas.pool import ReplicaPool
from structuredllm_gateway.replicas.replica import Replica
from structuredllm_gateway.replicas.roster import Roster
from structuredllm_gateway.settings import Settings
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.upstream.endpoints import PickPolicy
from structuredllm_gateway.upstream.retry import is_answered, is_retryable
from structuredllm_gateway.validation.outcomes import Outcome

_FIRST, _REPAIR = "first", "repair"


class Attempts:
    """Makes the tries of requests."""

    def __init__(
        self,
        roster: Roster,
        tries: TryMaker,
        *,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """Take the replicas and the means to ask them; `clock` is monotonic seconds."""
        self._roster = roster
        self._tries = tries
        self._settings = settings
        self._metrics = metrics
        self._clock = clock

    async def run(self, exchange: Exchange, sink: Sink) -> TryResult:
        """Return what the last try gave.

        Raises:
            NoEndpointError: no replica is ready, and none became so in the time that requests wait.
        """
        pool = self._roster.pool(exchange.request.model)
        if pool is None or not pool.is_serving:
            pool = await self._ready_pool(exchange)
        structured = exchange.request.is_structured
        key = self._key(exchange, pool)
        now = self._clock()
        if not exchange.is_repair:
            pool.budget.deposit(now)
        replica = pool.pick(structured=structured, key=key, now=now)
        if replica is None:
            raise self._no_endpoint(exchange)
        result = await self._try(exchange, replica, sink, _REPAIR if exchange.is_repair else _FIRST)
        tried: set[str] | None = None
        asked_again = False
        weak: list[tuple[Replica, Outcome]] | None = None
        while True:
            again = self._again(exchange, result, asked_again)
            following: Replica | None = None
            if again:
                tried = {replica.name} if tried is None else tried | {replica.name}
                following = self._next(exchange, result, tried, key)
            if blame_of(result.outcome) is not Blame.WEAK:
                self._record(exchange, pool, replica, result.outcome, structured=structured)
            elif following is None and weak is None:
                # A model that had to be argued with is no sign of a broken engine.
                certain = not exchange.is_repair
                self._roster.record(pool, replica, result.outcome, structured=structured, blamed=certain)
            else:
                weak = [*(weak or ()), (replica, result.outcome)]
            if following is None:
                break
            asked_again = asked_again or is_answered(result.outcome)
            reason = result.outcome.value
            exchange.record.retried_for.append(reason)
            replica = following
            result = await self._try(exchange, replica, sink, reason)
        if weak:
            # Wrong on every replica: the request is at fault. Wrong on one, right on another: that one is.
            cured = blame_of(result.outcome) is Blame.GOOD
            for blamed, outcome in weak:
                self._roster.record(pool, blamed, outcome, structured=structured, blamed=cured)
        return result

    async def _ready_pool(self, exchange: Exchange) -> ReplicaPool:
        model = exchange.request.model
        limit = min(exchange.deadline, self._clock() + self._settings.warmup.max_wait_seconds)
        while await self._roster.wait(model, limit - self._clock()):
            pool = self._roster.pool(model)
            if pool is None:
                break
            if pool.is_serving:
                return pool
        raise self._no_endpoint(exchange)

    async def _try(self, exchange: Exchange, replica: Replica, sink: Sink, reason: str) -> TryResult:
        record = exchange.record
        record.attempts += 1
        record.replica = replica.name
        model = exchange.incoming.visit.model or self._metrics.model_label(exchange.request.model)
        self._metrics.upstream_attempts.labels(model, reason).inc()
        with replica:
            if exchange.request.stream:
                result = await self._tries.stream(exchange, replica.endpoint, sink)
            else:
                result = await self._tries.whole(exchange, replica.endpoint)
        if result.outcome is Outcome.GRAMMAR_REJECTED:
            record.fsm_errors += 1
            label = self._metrics.replica_label(replica.name)
            schema = self._metrics.schema_label(record.schema_key)
            self._metrics.fsm_errors.labels(model, label, schema, exchange.pool.backend).inc()
        return result

    def _again(self, exchange: Exchange, result: TryResult, asked_again: bool) -> bool:
        if exchange.is_repair or exchange.record.attempts >= self._settings.upstream.max_attempts:
            return False
        return is_retryable(
            result.outcome,
            mode=exchange.mode,
            committed=result.committed,
            upstream_status=result.upstream_status,
            asked_again=asked_again,
        ) and (self._clock() < exchange.deadline)

    def _next(
        self, exchange: Exchange, result: TryResult, tried: set[str], key: int | None
    ) -> Replica | None:
        """Return who is asked next, None when there is nobody or retries are too much of the traffic."""
        # Read anew for each try: a replica that went away since the first is not asked.
        pool = self._roster.pool(exchange.request.model)
        if pool is None:
            return None
        structured, now = exchange.request.is_structured, self._clock()
        replica = pool.pick(structured=structured, key=key, now=now, exclude=tried)
        if replica is None and result.outcome is Outcome.CONNECT_ERROR:
            # An engine closes an idle connection in the moment in which it is used again: with no other
            # replica a new connection to the same one is the cure, and no answer was begun.
            replica = pool.pick(structured=structured, key=key, now=now)
        if replica is None:
            return None
        if not pool.budget.withdraw(now):
            self._metrics.retry_budget_exhausted.labels(pool.model).inc()
            return None
        return replica

    def _record(
        self, exchange: Exchange, pool: ReplicaPool, replica: Replica, outcome: Outcome, *, structured: bool
    ) -> None:
        # What is left of the deadline after another replica has used it up says nothing about this one.
        cut_short = (
            outcome is Outcome.TIMEOUT and exchange.record.attempts > 1 and self._clock() >= exchange.deadline
        )
        self._roster.record(pool, replica, outcome, structured=structured, blamed=not cut_short)

    def _key(self, exchange: Exchange, pool: ReplicaPool) -> int | None:
        if pool.policy is PickPolicy.LEAST_OUTSTANDING:
            return None
        routing = self._settings.routing
        return affinity_key(
            pool.policy,
            exchange.body,
            exchange.incoming.headers,
            prefix_bytes=routing.prefix_bytes,
            session_header=routing.session_header,
        )

    def _no_endpoint(self, exchange: Exchange) -> NoEndpointError:
        model = exchange.request.model
        return NoEndpointError(
            f"No replica of {model!r} is serving now: none is ready and has passed the structured gate. "
            "Try again later.",
            retry_after_seconds=self._settings.limits.no_endpoint_retry_after_seconds,
        )
