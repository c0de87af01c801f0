"""The one reconcile: observe -> plan -> apply -> report, level-triggered and idempotent.

Owns the order of the steps. Everything that can change the outcome is read anew each time; nothing is
remembered between calls but the gate runner's results.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from structuredllm_operator.api.conditions import UNKNOWN
from structuredllm_operator.apply import apply_children, post_events, write_gates, write_status
from structuredllm_operator.engine_info import EngineInfoSource
from structuredllm_operator.errors import ConflictError, NotFoundError
from structuredllm_operator.gate_runner import GateRunner, ResourceKey
from structuredllm_operator.kube.client import KubeClient
from structuredllm_operator.kube.served import ServedKinds
from structuredllm_operator.metrics import Metrics
from structuredllm_operator.model_progress import ProgressSource
from structuredllm_operator.observe import observe
from structuredllm_operator.plan.model_cache import Downloader
from structuredllm_operator.plan.observed import Observed
from structuredllm_operator.plan.plan import Plan, make_plan
from structuredllm_operator.quarantine_source import QuarantineSource
from structuredllm_operator.report import make_report

_LOGGER = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
UNKNOWN_SECONDS: Final = 10.0
"""An engine that did not report its topology is asked again after this time."""

Clock = Callable[[], datetime]


class Controller:
    """Brings one resource at a time to its desired state.

    Args:
        client: the API server.
        engines: asks engines what they run.
        runner: sends bursts.
        metrics: gets durations and results.
        clock: wall clock for condition times.
        monotonic: clock for durations, seconds.
        resync_seconds: a resource is looked at again after this time, whatever happened.
        gateway_url: goes to status.url; empty for the engine's own Service.
        quarantines: asks the gateways which pods they keep traffic from; None without gateways.
        progress: asks running downloads of models how far they are; None = nobody is asked.
        downloader: the image that fetches models; None = models are not fetched to claims.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        engines: EngineInfoSource,
        runner: GateRunner,
        metrics: Metrics,
        clock: Clock,
        monotonic: Callable[[], float],
        resync_seconds: float,
        gateway_url: str = "",
        quarantines: QuarantineSource | None = None,
        progress: ProgressSource | None = None,
        downloader: Downloader | None = None,
    ) -> None:
        self._client = client
        self._engines = engines
        self._runner = runner
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._resync_seconds = resync_seconds
        self._gateway_url = gateway_url
        self._quarantines = quarantines
        self._served = ServedKinds(client, monotonic=monotonic)
        self._progress = progress
        self._downloader = downloader

    async def reconcile(self, key: ResourceKey) -> float | None:
        """Reconcile one resource; returns the seconds until the next look, None when it is gone.

        Raises:
            KubeError: the API server refused or did not answer; calling again later is safe.
        """
        started = self._monotonic()
        ok = False
        again: float | None
        try:
            again = await self._reconcile(key)
            ok = True
        except (NotFoundError, ConflictError) as error:
            # Deleted or replaced between our reading and our writing: look again at what is there now.
            _LOGGER.info("%s/%s changed meanwhile: %s", *key, error)
            again, ok = RETRY_SECONDS, True
        finally:
            self._metrics.reconcile(seconds=self._monotonic() - started, ok=ok)
        return again

    async def _reconcile(self, key: ResourceKey) -> float | None:
        namespace, name = key
        observed = await observe(
            self._client,
            self._engines,
            namespace,
            name,
            self._quarantines,
            self._served,
            self._progress,
        )
        if observed is None or observed.deleting:
            self._runner.keep(key, ())
            if observed is None:
                self._metrics.forget(namespace, name)
            return None
        alive = {
            (pod.uid, pod.container_id) for pod in observed.pods if pod.container_id and not pod.terminating
        }
        self._runner.keep(key, alive)
        plan = make_plan(observed, self._runner.runs(key), self._runner.now, self._downloader)
        now = rfc3339(self._clock())
        # Gates first: a restarted container must lose its gate even when applying children fails.
        await write_gates(self._client, namespace, observed, plan.gate_writes, now)
        for order in plan.bursts:
            self._runner.start(order)
        await apply_children(self._client, plan)
        report = make_report(observed, plan, now=now, gateway_url=self._gateway_url)
        await write_status(self._client, observed, report)
        if report.changed:
            await post_events(self._client, observed, report.events, now)
        self._metrics.resource(namespace, name, ready=report.ready, gate_failing=report.gate_failing)
        return self._next_look(observed, plan)

    def _next_look(self, observed: Observed, plan: Plan) -> float:
        waits = [self._resync_seconds]
        if plan.look_again_seconds is not None:
            waits.append(plan.look_again_seconds)
        if plan.bursts:
            waits.append(0.0)
        if any(finding.status == UNKNOWN for finding in plan.topology.values()):
            waits.append(UNKNOWN_SECONDS)
        return max(0.05, min(waits))


def rfc3339(moment: datetime) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
