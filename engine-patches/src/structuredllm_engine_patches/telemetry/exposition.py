"""Turn an engine core's state into /metrics and /info. Reads only, at the time of the scrape."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family

from structuredllm_engine_patches.telemetry.metrics import (
    METRICS,
    PATCH_INFO,
    Counter,
    Facts,
    Histogram,
    Metric,
)
from structuredllm_engine_patches.telemetry.observation import Observation, PatchState


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while the engine core runs; field names are those of /info.

    `async_scheduling_forced_off` is the reason why p040 switched it off, empty when it did not.
    """

    vllm_version: str
    package_version: str
    policy: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    world_size: int
    async_scheduling: bool
    async_scheduling_forced_off: str
    model: str
    structured_outputs_backend: str


@dataclass(frozen=True)
class EngineView:
    """Everything that the telemetry port shows of one engine core.

    Attributes:
        facts: what does not change.
        patches: state of each patch, in the register's order; read at each scrape.
        observation: the metrics' values; None where nothing is counted (a version of vLLM that is not known),
            which must not look like zeros.
    """

    facts: EngineFacts
    patches: Callable[[], Sequence[PatchState]]
    observation: Observation | None


def render_info(view: EngineView) -> bytes:
    """Return the body of /info."""
    patches = [{"id": p.patch_id, "state": p.state.value, "reason": p.reason} for p in view.patches()]
    return json.dumps({**vars(view.facts), "patches": patches}).encode()


def render_metrics(view: EngineView) -> bytes:
    """Return the body of /metrics in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ViewCollector(view))
    return generate_latest(registry)


class _ViewCollector:
    def __init__(self, view: EngineView) -> None:
        self._view = view

    def collect(self) -> Iterable[Family]:
        """Yield the metric families with their values of this moment."""
        observation = self._view.observation
        for metric in METRICS:
            if isinstance(metric, Facts):
                yield _facts_family(metric, self._view)
            elif observation is not None:
                yield _family(metric, observation)


def _facts_family(metric: Facts, view: EngineView) -> Family:
    facts = view.facts
    info = GaugeMetricFamily(metric.name, metric.help, labels=list(metric.labels))
    if metric is PATCH_INFO:
        for patch in view.patches():
            info.add_metric([patch.patch_id, facts.vllm_version, patch.state.value], 1)
    else:
        info.add_metric(
            [
                str(facts.tensor_parallel_size),
                str(facts.pipeline_parallel_size),
                str(facts.data_parallel_size),
                str(facts.async_scheduling).lower(),
                facts.structured_outputs_backend,
            ],
            1,
        )
    return info


def _family(metric: Metric, observation: Observation) -> Family:
    names = list(metric.labels)
    if isinstance(metric, Histogram):
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
        for (owner, key), found in sorted(observation.distributions.copy().items(), key=_by_key):
            if owner is metric:
                bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
                cumulated = itertools.accumulate(found.counts.copy())
                histogram.add_metric(key, list(zip(bounds, cumulated, strict=True)), found.total)
        return histogram
    family = (
        CounterMetricFamily(metric.name, metric.help, labels=names)
        if isinstance(metric, Counter)
        else GaugeMetricFamily(metric.name, metric.help, labels=names)
    )
    values = {key: value for (owner, key), value in observation.counts.copy().items() if owner is metric}
    values |= {key: read() for (owner, key), read in observation.readers.copy().items() if owner is metric}
    if not names:
        values.setdefault((), 0)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _by_key(item: tuple[tuple[Metric, tuple[str, ...]], object]) -> tuple[str, ...]:
    return item[0][1]
