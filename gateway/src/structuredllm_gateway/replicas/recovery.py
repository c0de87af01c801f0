"""Ends quarantines: when the time is over a burst decides, not the next client.

Owns the loop and its tasks. A burst that passes releases the replica; one that fails prolongs the quarantine.
One that cannot tell (an engine whose limits do not fit the burst) releases on trial, or a replica would be
away for ever because of a probe that does not suit it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from structuredllm_gateway.replicas.agreement import Agreement
from structuredllm_gateway.replicas.breaker import BreakerState
from structuredllm_gateway.replicas.pool import ReplicaPool
from structuredllm_gateway.replicas.replica import Replica
from structuredllm_gateway.replicas.roster import Roster
from structuredllm_gateway.upstream.prober import Probe, ProbeResult, ProbeVerdict

_LOOK_SECONDS = 0.5


class Recovery:
    """Sends the probes that quarantined replicas are due."""

    def __init__(
        self,
        roster: Roster,
        probe: Probe,
        *,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        agreement: Agreement | None = None,
    ) -> None:
        """Take the replicas and the probe; `clock` is the roster's, `agreement` that with other workers."""
        self._agreement = agreement
        self._roster = roster
        self._probe = probe
        self._clock = clock
        self._log = log
        self._sleep = sleep

    async def run(self) -> None:
        """Look for due replicas until cancelled; the probes end with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                if self._agreement is not None:
                    self._agreement.exchange()
                for pool, replica in self._roster.due():
                    replica.breaker.probe()
                    group.create_task(self.decide(pool, replica))
                await self._sleep(_LOOK_SECONDS)

    async def decide(self, pool: ReplicaPool, replica: Replica) -> None:
        """Probe one replica and act on what the burst shows."""
        try:
            result = await self._probe(replica.endpoint.url, pool.model)
        except Exception as error:
            # A fault of ours must neither end the loop nor leave the replica probing for ever.
            self._log.exception("probe_failed", model=pool.model, replica=replica.name)
            result = ProbeResult(ProbeVerdict.UNDECIDED, f"the probe itself failed: {error!r}")
        if replica.breaker.state is not BreakerState.PROBING:
            return
        if result.verdict in (ProbeVerdict.HEALTHY, ProbeVerdict.UNDECIDED):
            on_trial = result.verdict is ProbeVerdict.UNDECIDED
            self._roster.release(pool, replica, on_trial=on_trial, message=result.message)
            return
        replica.breaker.reopen(self._clock())
        self._log.warning(
            "quarantine_prolonged",
            model=pool.model,
            replica=replica.name,
            probe=result.message,
            seconds=round(replica.breaker.until - self._clock(), 1),
            count=replica.breaker.count,
        )
