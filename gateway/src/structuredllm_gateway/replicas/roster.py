"""All replicas of all models, kept in step with discovery: the relay's one place to ask and to report to.

Owns the pools, the waiting room and what is said of quarantines (log, metrics). A request reads the source's
snapshot each time, so what has begun to terminate gets nothing from that moment on; the pools are only
rebuilt when the snapshot is another one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator

import structlog

from structuredllm_gateway.replicas.pool import PoolRules, ReplicaPool, Verdict
from structuredllm_gateway.replicas.replica import Load, Replica
from structuredllm_gateway.replicas.waiting import WaitingRoom
from structuredllm_gateway.upstream.endpoints import EndpointSource, Snapshot
from structuredllm_gateway.validation.outcomes import Outcome

RELEASED, WITHHELD = "released", "withheld"


class Roster:
    """The replicas.

    Attributes:
        quarantined: how many are quarantined now, of all models.
    """

    def __init__(
        self,
        source: EndpointSource,
        rules: PoolRules,
        *,
        max_waiting: int,
        count_event: Callable[[str, str], None],
        clock: Callable[[], float],
        rng: random.Random,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """Take the source and the rules.

        Args:
            source: where the replicas are.
            rules: of the pools.
            max_waiting: requests that may wait for a first replica.
            count_event: counts a model's quarantine event by its reason.
            clock: monotonic seconds.
            rng: breaks ties and draws in slow start.
            log: where quarantines are said.
        """
        self._source = source
        self._rules = rules
        self._count_event = count_event
        self._clock = clock
        self._rng = rng
        self._log = log
        self._room = WaitingRoom(max_waiting)
        self._seen: Snapshot | None = None
        self._stale_since: float | None = None
        self._pools: dict[str, ReplicaPool] = {}
        self._loads: dict[str, Load] = {}
        self.quarantined = 0
        source.subscribe(self._changed)

    def pool(self, model: str) -> ReplicaPool | None:
        """Return a model's replicas as of now; None when discovery does not know the model."""
        if self._source.snapshot() is not self._seen:
            self._refresh()
        return self._pools.get(model)

    def pools(self) -> Collection[ReplicaPool]:
        """Return the replicas of all models as of now."""
        if self._source.snapshot() is not self._seen:
            self._refresh()
        return self._pools.values()

    async def wait(self, model: str, seconds: float) -> bool:
        """Wait until something has changed for `model`; False when there is no room or no time left."""
        return await self._room.wait(model, seconds)

    def record(
        self, pool: ReplicaPool, replica: Replica, outcome: Outcome, *, structured: bool, blamed: bool = True
    ) -> None:
        """Count a try; quarantine the replica when that was one too many."""
        if outcome is Outcome.CONNECT_ERROR:
            self._source.suspect(replica.endpoint)
        led_to = pool.record(replica, outcome, self._clock(), structured=structured, blamed=blamed)
        if led_to == Verdict.NOTHING:
            return
        breaker = replica.breaker
        if led_to == Verdict.WITHHELD:
            self._count_event(pool.model, WITHHELD)
            self._log.warning(
                "quarantine_withheld",
                model=pool.model,
                replica=replica.name,
                reason=outcome.value,
                hint="too few other replicas are left; look at this one",
            )
            return
        self.quarantined += 1
        self._count_event(pool.model, outcome.value)
        self._log.warning(
            "replica_quarantined",
            model=pool.model,
            replica=replica.name,
            reason=outcome.value,
            scope="all" if breaker.covers_plain else "structured",
            seconds=round(breaker.until - breaker.since, 1),
            count=breaker.count,
        )

    def release(self, pool: ReplicaPool, replica: Replica, *, on_trial: bool, message: str) -> None:
        """End a quarantine because of what the probe said in `message`."""
        pool.release(replica, self._clock(), on_trial=on_trial)
        self.quarantined = sum(len(one.quarantined()) for one in self._pools.values())
        self._count_event(pool.model, RELEASED)
        self._log.info(
            "replica_released", model=pool.model, replica=replica.name, on_trial=on_trial, probe=message
        )

    def adopt(
        self, pool: ReplicaPool, replica: Replica, reason: str, *, covers_plain: bool, until: float
    ) -> None:
        """Quarantine a replica because another worker of this pod has; not counted, as that worker does."""
        if pool.adopt(replica, reason, self._clock(), covers_plain=covers_plain, until=until):
            self.quarantined += 1
            self._log.info("quarantine_adopted", model=pool.model, replica=replica.name, reason=reason)

    def due(self) -> list[tuple[ReplicaPool, Replica]]:
        """Return the quarantined replicas that a probe may now decide on."""
        if not self.quarantined:
            return []
        now = self._clock()
        return [(pool, replica) for pool in self.pools() for replica in pool.due(now)]

    @property
    def waiting_requests(self) -> int:
        """How many requests wait for a first replica."""
        return self._room.count

    def waiting_for(self, model: str) -> int:
        """Return how many requests wait for a first replica of `model`."""
        return self._room.waiting(model)

    def stale_seconds(self) -> float:
        """Return for how long the endpoints have been the last known ones; 0 while discovery is in touch."""
        if self._source.snapshot() is not self._seen:
            self._refresh()
        return 0.0 if self._stale_since is None else max(0.0, self._clock() - self._stale_since)

    def quarantine_levels(self) -> Iterator[tuple[str, str, int]]:
        """Yield model, replica, and 1 where it is quarantined, else 0."""
        for pool in self.pools():
            for replica in pool.replicas.values():
                yield pool.model, replica.name, 0 if replica.breaker.is_closed else 1

    def snapshot(self) -> Snapshot:
        """Return discovery's present view."""
        return self._source.snapshot()

    def _changed(self) -> None:
        self._refresh()
        for pool in self._pools.values():
            if pool.is_serving:
                self._room.wake(pool.model)
        if self._seen is not None and self._seen.synced:
            # Those who wait for a model that turned out not to exist are told so.
            for model in self._room.models() - self._pools.keys():
                self._room.wake(model)

    def _refresh(self) -> None:
        view, now = self._source.snapshot(), self._clock()
        # A gateway that has just started cannot know who is new, and nobody is new to a fresh gateway.
        first = self._seen is None or not self._seen.synced
        self._seen = view
        if not view.stale:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now
        urls = {endpoint.url for pool in view.pools.values() for endpoint in pool.endpoints}
        self._loads = {url: self._loads.get(url) or Load() for url in urls}
        pools: dict[str, ReplicaPool] = {}
        for model, known in view.pools.items():
            pool = self._pools.get(model) or ReplicaPool(model, self._rules, self._rng)
            pool.update(known, self._loads, now, warm=first)
            pools[model] = pool
        self._pools = pools
        self.quarantined = sum(len(pool.quarantined()) for pool in pools.values())
