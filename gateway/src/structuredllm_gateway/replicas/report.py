"""The replicas as JSON, for people and for the operator: state, load, counts, quarantine.

Owns the form of /debug/replicas; a contract: the operator reads `model`, `namespace`, `replica`,
`incarnation` and `quarantine`. Pure but for the clocks that come in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from structuredllm_gateway.replicas.pool import ReplicaPool
from structuredllm_gateway.replicas.replica import Replica
from structuredllm_gateway.replicas.roster import Roster


class ReplicaReport:
    """Makes the report."""

    def __init__(
        self,
        roster: Roster,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        slow_start: float,
    ) -> None:
        """Take the roster and its clock; `wall_clock` is seconds since 1970, `slow_start` seconds."""
        self._roster = roster
        self._clock = clock
        self._wall_clock = wall_clock
        self._slow_start = slow_start

    def build(self) -> dict[str, Any]:
        """Return the report; bounded by what discovery knows."""
        now, wall = self._clock(), self._wall_clock()
        view = self._roster.snapshot()
        pools = sorted(self._roster.pools(), key=lambda pool: pool.model)
        return {
            "time": _stamp(wall),
            "discovery": {
                "synced": view.synced,
                "stale": view.stale,
                "staleSeconds": round(self._roster.stale_seconds(), 1),
            },
            "waitingRequests": {pool.model: self._roster.waiting_for(pool.model) for pool in pools},
            "replicas": [
                self._replica(pool, replica, now, wall)
                for pool in pools
                for replica in pool.replicas.values()
            ],
        }

    def _replica(self, pool: ReplicaPool, replica: Replica, now: float, wall: float) -> dict[str, Any]:
        endpoint, breaker = replica.endpoint, replica.breaker
        answers, wrong, tries, silent = breaker.counts(now)
        found: dict[str, Any] = {
            "model": pool.model,
            "namespace": endpoint.namespace,
            "replica": replica.name,
            "incarnation": endpoint.incarnation,
            "url": endpoint.url,
            "state": endpoint.state.value,
            "policy": pool.policy.value,
            "outstanding": replica.load.outstanding,
            "slowStart": now - replica.ready_at < self._slow_start,
            "tries": dict(sorted(replica.tries.items())),
            "window": {
                "structuredAnswers": answers,
                "wrongAnswers": wrong,
                "tries": tries,
                "failedTries": silent,
            },
            "quarantine": {
                "state": breaker.state.value,
                "onTrial": breaker.on_trial,
                "withheld": now < breaker.withheld_until,
                "count": breaker.count,
            },
        }
        if not breaker.is_closed:
            found["quarantine"] |= {
                "scope": "All" if breaker.covers_plain else "StructuredOnly",
                "reason": breaker.reason,
                "since": _stamp(wall - (now - breaker.since)),
                "until": _stamp(wall - (now - breaker.until)),
            }
        return found


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one report for the workers of a pod: counts added up, quarantined where any worker says so.

    Without a report there is nothing to say, and `replicas` is empty.
    """
    whole: dict[str, Any] = {**reports[0]} if reports else {"replicas": []}
    replicas: dict[tuple[str, str, str], dict[str, Any]] = {}
    for report in reports:
        for one in report["replicas"]:
            key = (one["model"], one["namespace"], one["replica"])
            if (before := replicas.get(key)) is None:
                replicas[key] = {**one}
                continue
            before["outstanding"] += one["outstanding"]
            before["tries"] = dict(Counter(before["tries"]) + Counter(one["tries"]))
            before["window"] = {name: count + one["window"][name] for name, count in before["window"].items()}
            if before["quarantine"]["state"] == "closed":
                before["quarantine"] = one["quarantine"]
    waiting = sum((Counter(report.get("waitingRequests", {})) for report in reports), Counter[str]())
    return {
        **whole,
        "workers": len(reports),
        "waitingRequests": dict(waiting),
        "replicas": [*replicas.values()],
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
