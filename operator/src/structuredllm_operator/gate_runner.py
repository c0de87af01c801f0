"""Sends cold structured bursts, a bounded number at a time, and remembers what they found per container.

Owns the tasks and their results; decides nothing (plan/gate.py does) and writes nothing to Kubernetes. When
a burst ends, `on_done` puts the resource on the work queue, and the next reconcile reads the result from
`runs()`.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from structuredllm_operator.metrics import Metrics
from structuredllm_operator.plan.gate import BurstOrder, BurstResult, GateRun, RunKey

_LOGGER = logging.getLogger(__name__)

ResourceKey = tuple[str, str]
Prober = Callable[[BurstOrder], Awaitable[BurstResult]]
"""Port: send one burst. Must end within the order's time-out and not raise for a broken engine."""


class GateRunner:
    """Bursts of all resources.

    Args:
        prober: sends one burst.
        on_done: called with (namespace, name) when a burst ended.
        max_concurrent: bursts under way at the same time over all resources: they load engines and network.
        clock: monotonic seconds.
        jitter_seconds: returns the pause before a burst, so that pods that start together are not hit
        together.
        metrics: counts verdicts.
    """

    def __init__(
        self,
        prober: Prober,
        *,
        on_done: Callable[[ResourceKey], None],
        max_concurrent: int,
        clock: Callable[[], float],
        jitter_seconds: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._prober = prober
        self._on_done = on_done
        self._slots = asyncio.Semaphore(max_concurrent)
        self._clock = clock
        self._jitter_seconds = jitter_seconds
        self._metrics = metrics
        self._runs: dict[ResourceKey, dict[RunKey, GateRun]] = {}
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}

    @property
    def now(self) -> float:
        """The clock on which `GateRun.finished_at` is given, in seconds."""
        return self._clock()

    def runs(self, resource: ResourceKey) -> Mapping[RunKey, GateRun]:
        """Return what is known of a resource's containers."""
        return dict(self._runs.get(resource, {}))

    def start(self, order: BurstOrder) -> None:
        """Start a burst unless one is under way for that container."""
        if order.key in self._tasks:
            return
        resource = (order.namespace, order.name)
        known = self._runs.setdefault(resource, {})
        previous = known.get(order.key)
        if previous is None or previous.generation != order.generation:
            # A changed spec gives new attempts, but the last failure stays on show until the burst ends.
            last = previous.last if previous is not None else None
            previous = GateRun(generation=order.generation, last=last)
        known[order.key] = dataclasses.replace(previous, running=True)
        self._tasks[order.key] = asyncio.create_task(
            self._run(resource, order), name=f"burst {order.pod_name}"
        )

    def keep(self, resource: ResourceKey, alive: Iterable[RunKey]) -> None:
        """Cancel and forget everything about the resource's containers that are not alive any more."""
        known = self._runs.get(resource)
        if known is None:
            return
        for key in set(known) - set(alive):
            del known[key]
            task = self._tasks.pop(key, None)
            if task is not None:
                task.cancel()
        if not known:
            del self._runs[resource]

    async def close(self) -> None:
        """Cancel all bursts and wait for their end."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, resource: ResourceKey, order: BurstOrder) -> None:
        try:
            await asyncio.sleep(self._jitter_seconds())
            async with self._slots:
                result = await self._probe(order)
        except asyncio.CancelledError:
            _LOGGER.info(
                "burst against pod %s/%s cancelled: its container is gone", order.namespace, order.pod_name
            )
            raise
        self._tasks.pop(order.key, None)
        known = self._runs.get(resource, {})
        run = known.get(order.key)
        if run is not None:
            known[order.key] = dataclasses.replace(
                run, running=False, attempts=run.attempts + 1, last=result, finished_at=self._clock()
            )
        self._on_done(resource)

    async def _probe(self, order: BurstOrder) -> BurstResult:
        _LOGGER.info(
            "burst %d against pod %s/%s (%s)", order.attempt, order.namespace, order.pod_name, order.base_url
        )
        try:
            result = await self._prober(order)
        except Exception as error:
            # A fault in the probe must not leave the gate in "running" for ever.
            _LOGGER.exception("the probe failed on pod %s/%s", order.namespace, order.pod_name)
            result = BurstResult(
                False, "Inconclusive", f"the probe itself failed: {type(error).__name__}: {error}"
            )
        self._metrics.burst(verdict=result.verdict, reason=result.reason)
        _LOGGER.info(
            "burst against pod %s/%s: %s: %s", order.namespace, order.pod_name, result.reason, result.message
        )
        return result
