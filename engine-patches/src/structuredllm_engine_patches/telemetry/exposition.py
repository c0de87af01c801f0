"""Turn an engine core's state into /metrics and /info. Reads only, at the time of the scrape."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from structuredllm_engine_patches.telemetry.observation import Observation, PatchState


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while the engine core runs; field names are those of /info."""

    vllm_version: str
    package_version: str
    policy: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    world_size: int
    async_scheduling: bool
    model: str
    structured_outputs_backend: str


@dataclass(frozen=True)
class EngineView:
    """Everything that the telemetry port shows of one engine core.

    Attributes:
        facts: what does not change.
        patches: state of each patch, in the register's order; read at each scrape.
        observation: the counters.
        drained_batches: returns how many batches the drain has processed.
        in_flight_steps: returns how many batches are in the queue.
    """

    facts: EngineFacts
    patches: Callable[[], Sequence[PatchState]]
    observation: Observation
    drained_batches: Callable[[], int]
    in_flight_steps: Callable[[], int]


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

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families with their values of this moment."""
        view = self._view
        info = GaugeMetricFamily(
            "structuredllm_engine_patch_info",
            "State of each patch in this engine core, always 1.",
            labels=["id", "vllm", "state"],
        )
        for patch in view.patches():
            info.add_metric([patch.patch_id, view.facts.vllm_version, patch.state.value], 1)
        yield info
        rejects = CounterMetricFamily(
            "structuredllm_engine_grammar_rejects",
            "Requests ended because their grammar refused a sampled token.",
            labels=["backend"],
        )
        for backend, count in sorted(view.observation.grammar_rejects.copy().items()):
            rejects.add_metric([backend], count)
        yield rejects
        yield CounterMetricFamily(
            "structuredllm_engine_stale_mask",
            "Masks built while an earlier token of their request was still in flight; must stay 0.",
            value=view.observation.stale_masks,
        )
        yield CounterMetricFamily(
            "structuredllm_engine_drained_batches",
            "Queued batches that the drain processed before a mask was built.",
            value=view.drained_batches(),
        )
        yield GaugeMetricFamily(
            "structuredllm_engine_in_flight_steps",
            "Batches scheduled and not yet processed.",
            value=view.in_flight_steps(),
        )
