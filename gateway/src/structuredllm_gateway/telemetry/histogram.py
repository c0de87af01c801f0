"""A histogram for what happens with every part of a stream: no lock, no label look-up, two additions.

Owns the counting and its exposition. For one event loop only, unlike prometheus_client's, whose `observe`
costs more than forwarding the part it would count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Series:
    """The counts of one label value."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start at zero."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value (seconds)."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class LoopHistogram(Collector):
    """A histogram with one label, whose values the caller bounds."""

    def __init__(self, name: str, documentation: str, label: str, bounds: tuple[float, ...]) -> None:
        """Prepare without series."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = bounds
        self._series: dict[str, Series] = {}

    def series(self, value: str) -> Series:
        """Return the series of a label value, to be kept for as long as it is used."""
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = Series(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=(self._label,))
        for value, series in sorted(self._series.items()):
            buckets: list[tuple[str, float]] = []
            seen = 0
            for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
                seen += count
                buckets.append((_bound_text(bound), float(seen)))
            family.add_metric((value,), buckets, series.total)
        yield family


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
