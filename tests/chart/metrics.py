"""Finds metric names: the series that the packages really expose, and those that rules and dashboards use."""

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from structuredllm_engine_patches.telemetry.exposition import EngineFacts, EngineView, render_metrics
from structuredllm_engine_patches.telemetry.observation import Observation
from structuredllm_gateway.telemetry.metrics import Metrics as GatewayMetrics
from structuredllm_gateway.upstream.endpoints import Snapshot
from structuredllm_operator.metrics import Metrics as OperatorMetrics

_NAME = re.compile(r"structuredllm_(?:operator|gateway|engine)_[a-z0-9_]*[a-z0-9]")
_SERIES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}


def _engine_families() -> Iterator[Metric]:
    facts = EngineFacts(
        vllm_version="0",
        package_version="0",
        policy="required",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        world_size=1,
        async_scheduling=True,
        async_scheduling_forced_off="",
        model="toy",
        structured_outputs_backend="xgrammar",
    )
    view = EngineView(facts, lambda: (), Observation())
    yield from text_string_to_metric_families(render_metrics(view).decode())


def _families(registry: CollectorRegistry) -> Iterator[Metric]:
    yield from registry.collect()


def exported() -> dict[str, frozenset[str]]:
    """Return every metric family of the three packages with the names that Prometheus stores."""
    families = [
        *_families(OperatorMetrics().registry),
        *_families(GatewayMetrics(Snapshot).registry),
        *_engine_families(),
    ]
    ours = [family for family in families if family.name.startswith("structuredllm_")]
    return {f.name: frozenset(f.name + suffix for suffix in _SERIES[f.type]) for f in ours}


def used(text: str) -> set[str]:
    """Return all of our series that a PromQL text names."""
    return set(_NAME.findall(text))
