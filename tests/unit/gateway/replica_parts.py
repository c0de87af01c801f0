"""Helpers of the tests about replicas: a clock that is set by hand, pools and rosters without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structuredllm_gateway.replicas.breaker import QuarantineRules
from structuredllm_gateway.replicas.pool import PoolRules, ReplicaPool
from structuredllm_gateway.replicas.replica import Load, Replica
from structuredllm_gateway.replicas.roster import Roster
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointSource,
    EndpointState,
    ModelPool,
    Snapshot,
    ValidationMode,
)
from tests.unit.gateway.support import FixedEndpoints, capturing_log, seeded


class Clock:
    """Monotonic seconds that only move when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def endpoint(name: str, state: EndpointState = EndpointState.SERVING, incarnation: str = "1") -> Endpoint:
    return Endpoint(name, f"http://{name}", state, namespace="ns", incarnation=incarnation)


def known(*endpoints: Endpoint | str, model: str = "toy") -> ModelPool:
    """Return a model's endpoints; a name alone is one that serves."""
    return ModelPool(
        model,
        ValidationMode.ENFORCE,
        tuple(endpoint(one) if isinstance(one, str) else one for one in endpoints),
    )


def view_of(*pools: ModelPool, **more: Any) -> Snapshot:
    return Snapshot({pool.model: pool for pool in pools}, synced=True, **more)


def pool_with(names: str, rules: PoolRules | None = None, now: float = 1000.0) -> ReplicaPool:
    """Return a pool whose replicas have the letters of `names` for names, all serving for long."""
    pool = ReplicaPool("toy", rules or PoolRules(), seeded())
    given = known(*names)
    pool.update(given, {one.url: Load() for one in given.endpoints}, now, warm=True)
    return pool


def quick(**changes: Any) -> PoolRules:
    """Return pool rules with some of the quarantine's changed."""
    return PoolRules(quarantine=QuarantineRules(**changes))


def fail(pool: ReplicaPool, name: str, outcome: str, times: int, now: float = 1000.0) -> list[int]:
    """Record `times` structured tries of one class; return what each led to."""
    replica = pool.replicas[name]
    return [pool.record(replica, outcome, now, structured=True, blamed=True) for _ in range(times)]


def picked(pool: ReplicaPool, *, structured: bool = True, now: float = 1000.0, tries: int = 60) -> set[str]:
    """Return the names that come up in many picks."""
    found: set[str] = set()
    for _ in range(tries):
        replica = pool.pick(structured=structured, key=None, now=now)
        if replica is not None:
            found.add(replica.name)
    return found


class Stage:
    """A roster over a source that is set by hand."""

    def __init__(
        self, *pools: ModelPool, rules: PoolRules | None = None, max_waiting: int = 8, source: Any = None
    ) -> None:
        self.clock = Clock()
        self.logs: list[Mapping[str, Any]] = []
        self.source = source or FixedEndpoints(view_of(*pools))
        given: EndpointSource = self.source
        self.metrics = Metrics(given.snapshot)
        self.roster = Roster(
            given,
            rules or PoolRules(),
            max_waiting=max_waiting,
            count_event=lambda model, reason: self.metrics.quarantine_events.labels(model, reason).inc(),
            clock=self.clock,
            rng=seeded(),
            log=capturing_log(self.logs),
        )
        self.metrics.watch(self.roster)

    def pool(self, model: str = "toy") -> ReplicaPool:
        found = self.roster.pool(model)
        assert found is not None
        return found

    def replica(self, name: str, model: str = "toy") -> Replica:
        return self.pool(model).replicas[name]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"structuredllm_gateway_{name}", labels)

    def events(self) -> list[str]:
        return [line["event"] for line in self.logs]
