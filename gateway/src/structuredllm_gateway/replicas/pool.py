"""The replicas of one model: who may get what kind of request, who is quarantined, what a retry may cost.

Owns the decisions that need all of a model's replicas: the pick, and whether one can be spared. The lists to
pick from are made when something changes, not when a request comes. Must not import I/O; time and randomness
come in.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from structuredllm_gateway.replicas.blame import Blame, blame_of
from structuredllm_gateway.replicas.breaker import Breaker, BreakerState, QuarantineRules
from structuredllm_gateway.replicas.budget import RetryBudget
from structuredllm_gateway.replicas.picking import pick_hashed, pick_least, warm_share
from structuredllm_gateway.replicas.replica import Load, Replica
from structuredllm_gateway.upstream.endpoints import EndpointState, ModelPool, PickPolicy

_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PoolRules:
    """How replicas are picked and spared.

    Attributes:
        policy: of models that state none.
        load_factor: bound on a hashed replica's load, as a multiple of the mean.
        slow_start_seconds: how long a new replica's share grows; 0 = it has all of it at once.
        slow_start_least: the share it begins with.
        quarantine: thresholds; None = nothing is ever quarantined.
        retry_ratio: retries as a share of requests.
        retry_min_per_second: retries that are always allowed.
    """

    policy: PickPolicy = PickPolicy.LEAST_OUTSTANDING
    load_factor: float = 1.25
    slow_start_seconds: float = 30.0
    slow_start_least: float = 0.1
    quarantine: QuarantineRules | None = field(default_factory=QuarantineRules)
    retry_ratio: float = 0.2
    retry_min_per_second: float = 3.0


class Verdict:
    """What a recorded try led to; constants."""

    NOTHING = 0
    QUARANTINED = 1
    WITHHELD = 2  # earned, but no other replica may be missing too


class ReplicaPool:
    """The replicas of one model.

    Attributes:
        model: served model name.
        policy: how its replicas are picked.
        replicas: all that discovery knows, by name.
        budget: of its retries.
    """

    __slots__ = (
        "_plain",
        "_rng",
        "_rules",
        "_structured",
        "_warm_at",
        "budget",
        "model",
        "policy",
        "replicas",
    )

    def __init__(self, model: str, rules: PoolRules, rng: random.Random) -> None:
        """Start without replicas."""
        self.model = model
        self.policy = rules.policy
        self.budget = RetryBudget(rules.retry_ratio, rules.retry_min_per_second)
        self.replicas: dict[str, Replica] = {}
        self._rules = rules
        self._rng = rng
        self._structured: tuple[Replica, ...] = ()
        self._plain: tuple[Replica, ...] = ()
        self._warm_at = float("-inf")

    @property
    def is_serving(self) -> bool:
        """Whether any replica may get a request."""
        return bool(self._plain)

    def update(self, known: ModelPool, loads: Mapping[str, Load], now: float, *, warm: bool) -> None:
        """Take over what discovery knows now.

        Args:
            known: the model's endpoints.
            loads: by URL, one for each endpoint.
            now: monotonic seconds.
            warm: those that serve have done so before this gateway began; nobody is new to them.
        """
        self.policy = known.policy or self._rules.policy
        replicas: dict[str, Replica] = {}
        for endpoint in known.endpoints:
            before = self.replicas.get(endpoint.name)
            load = loads[endpoint.url]
            if (
                before is None
                or before.load is not load
                or before.endpoint.incarnation != endpoint.incarnation
            ):
                # Another process under the same name has done nothing wrong yet.
                rules = self._rules.quarantine or QuarantineRules()
                ready_at = float("-inf") if warm else now
                replicas[endpoint.name] = Replica(endpoint, load, Breaker(rules, now), ready_at)
                continue
            serves = EndpointState.SERVING
            if endpoint.state is serves and before.endpoint.state is not serves:
                before.ready_at = now
            before.endpoint = endpoint
            replicas[endpoint.name] = before
        self.replicas = replicas
        self._relist()

    def pick(
        self, *, structured: bool, key: int | None, now: float, exclude: Collection[str] = _NOBODY
    ) -> Replica | None:
        """Return who gets a request, None when there is nobody.

        Args:
            structured: whether it asks for structured output.
            key: its affinity, see `affinity`; None = whoever has the least to do.
            now: monotonic seconds.
            exclude: names of replicas that had this request before.
        """
        candidates: Sequence[Replica] = self._structured if structured else self._plain
        if now < self._warm_at:
            candidates = self._drawn(candidates, now, exclude)
        if key is not None:
            return pick_hashed(candidates, key, self._rules.load_factor, exclude)
        return pick_least(candidates, self._rng, exclude)

    def record(self, replica: Replica, outcome: str, now: float, *, structured: bool, blamed: bool) -> int:
        """Count a try and its class; return what it led to, one of `Verdict`.

        Args:
            replica: who was asked.
            outcome: class of the try.
            now: monotonic seconds.
            structured: whether structured output was asked for.
            blamed: False when something else than the replica is the likely cause.
        """
        replica.tries[outcome] = replica.tries.get(outcome, 0) + 1
        rules = self._rules.quarantine
        if rules is None or not blamed:
            return Verdict.NOTHING
        blame = blame_of(outcome)
        if blame is Blame.GOOD:
            replica.breaker.good(now, structured=structured)
            return Verdict.NOTHING
        if not replica.breaker.record(blame, now, structured=structured):
            return Verdict.NOTHING
        if (
            replica.endpoint.state is not EndpointState.SERVING
            or self.replicas.get(replica.name) is not replica
        ):
            return Verdict.NOTHING
        if blame is Blame.WEAK and not self._is_outlier(replica, now):
            return Verdict.NOTHING
        if not self._can_spare(rules.max_share):
            return Verdict.WITHHELD if replica.breaker.withhold(now) else Verdict.NOTHING
        replica.breaker.open(outcome, covers_plain=rules.covers_plain or blame is Blame.SILENT, now=now)
        self._relist()
        return Verdict.QUARANTINED

    def adopt(self, replica: Replica, reason: str, now: float, *, covers_plain: bool, until: float) -> bool:
        """Quarantine a replica as another worker has done; False when it cannot be spared here."""
        rules = self._rules.quarantine
        if rules is None or not self._can_spare(rules.max_share):
            return False
        replica.breaker.adopt(reason, covers_plain=covers_plain, now=now, until=until)
        self._relist()
        return True

    def due(self, now: float) -> list[Replica]:
        """Return the quarantined replicas whose time is over and that a probe may decide on."""
        return [
            replica
            for replica in self.replicas.values()
            if replica.breaker.state is BreakerState.QUARANTINED
            and replica.breaker.until <= now
            and replica.endpoint.state is EndpointState.SERVING
        ]

    def release(self, replica: Replica, now: float, *, on_trial: bool) -> None:
        """End a quarantine; the replica's share grows as that of a new one."""
        replica.breaker.release(now, on_trial=on_trial)
        replica.ready_at = now
        self._relist()

    def quarantined(self) -> list[Replica]:
        """Return those that are kept away from structured requests at least."""
        return [replica for replica in self.replicas.values() if not replica.breaker.is_closed]

    def _is_outlier(self, replica: Replica, now: float) -> bool:
        """Whether a replica's answers are wrong clearly more often than those of the others.

        When all are wrong alike, the requests are the cause: a schema that the engines cannot enforce.
        """
        own_answers, own_wrong, _, _ = replica.breaker.counts(now)
        answers = wrong = 0.0
        for other in self.replicas.values():
            if other is not replica:
                more_answers, more_wrong, _, _ = other.breaker.counts(now)
                answers += more_answers
                wrong += more_wrong
        return not answers or own_wrong / own_answers > 2 * wrong / answers

    def _can_spare(self, max_share: float) -> bool:
        """Whether one more may be missing: within the share, one at least, and never the last one."""
        serving = [r for r in self.replicas.values() if r.endpoint.state is EndpointState.SERVING]
        if not max_share:
            return False
        limit = min(max(1, int(max_share * len(serving))), len(serving) - 1)
        return sum(not replica.breaker.is_closed for replica in serving) < limit

    def _relist(self) -> None:
        serving = tuple(r for r in self.replicas.values() if r.endpoint.state is EndpointState.SERVING)
        # When the others have gone since, a quarantined replica is better than none: its answers are judged.
        self._structured = tuple(r for r in serving if r.breaker.is_closed) or serving
        self._plain = (
            tuple(r for r in serving if r.breaker.is_closed or not r.breaker.covers_plain) or serving
        )
        seconds = self._rules.slow_start_seconds
        self._warm_at = max((r.ready_at + seconds for r in serving), default=float("-inf"))

    def _drawn(
        self, candidates: Sequence[Replica], now: float, exclude: Collection[str]
    ) -> Sequence[Replica]:
        """Leave each new replica out of so many draws that it gets its growing share; never all of them."""
        seconds, least = self._rules.slow_start_seconds, self._rules.slow_start_least
        drawn = [
            replica
            for replica in candidates
            if (share := warm_share(replica, now, seconds, least)) >= 1.0 or self._rng.random() < share
        ]
        return drawn if any(replica.name not in exclude for replica in drawn) else candidates
