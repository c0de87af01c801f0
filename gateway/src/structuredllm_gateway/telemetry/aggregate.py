"""The metrics of several processes as those of one.

Owns the sums. Counters and histograms add up, also over workers that have ended, because a sum that falls
would look to Prometheus like a restart and count everything twice. Of gauges, those that measure a share of
the whole add up; what every worker sees alike (endpoints, the key file) is taken once, the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

SHARED_OUT_GAUGES = frozenset(
    {
        "structuredllm_gateway_inflight_requests",
        "structuredllm_gateway_connections",
        "structuredllm_gateway_held_stream_bytes",
        "structuredllm_gateway_queued_requests",
        "structuredllm_gateway_waiting_requests",
    }
)
"""Gauges of which each worker holds its part; all others are facts that each worker knows as a whole."""

_Key = tuple[str, tuple[tuple[str, str], ...]]
_ADDED_TYPES = frozenset({"counter", "histogram", "summary"})


class _Family:
    def __init__(self, like: Metric) -> None:
        self.like = like
        self.values: dict[_Key, float] = {}
        self.exemplars: dict[_Key, Exemplar] = {}
        self.added = like.type in _ADDED_TYPES or like.name in SHARED_OUT_GAUGES

    def take(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            if sample.name.endswith("_created"):
                continue
            key = (sample.name, tuple(sorted(sample.labels.items())))
            before = self.values.get(key)
            if before is None:
                self.values[key] = sample.value
            else:
                self.values[key] = before + sample.value if self.added else max(before, sample.value)
            if sample.exemplar is not None:
                self.exemplars[key] = sample.exemplar

    def metric(self) -> Metric:
        made = Metric(self.like.name, self.like.documentation, self.like.type)
        for key, value in self.values.items():
            name, labels = key
            made.samples.append(Sample(name, dict(labels), value, None, self.exemplars.get(key)))
        return made


def _families(text: str) -> Iterator[Metric]:
    yield from text_string_to_metric_families(text)  # type: ignore[no-untyped-call]


def summed(parts: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Return the families of all parts, each once."""
    families: dict[str, _Family] = {}
    for part in parts:
        for metric in part:
            families.setdefault(metric.name, _Family(metric)).take(metric.samples)
    return [family.metric() for family in families.values()]


class WorkerMetrics(Collector):
    """What the workers of a pod have counted, those that have ended included."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._last: dict[int, list[Metric]] = {}
        self._ended: list[Metric] = []

    def take(self, exposed: Mapping[int, str]) -> None:
        """Take the OpenMetrics text that each running worker exposes now.

        Raises:
            ValueError: a text is not OpenMetrics.
        """
        for number, text in exposed.items():
            self._last[number] = list(_families(text))

    def worker_ended(self, number: int) -> None:
        """Keep what a worker has counted, as far as it was last seen, and forget its gauges."""
        last = self._last.pop(number, [])
        kept = [metric for metric in last if metric.type in _ADDED_TYPES]
        self._ended = summed([self._ended, kept])

    def collect(self) -> Iterator[Metric]:
        """Yield the sums."""
        yield from summed([self._ended, *self._last.values()])
