"""Prometheus metrics at the price of a dictionary look-up and an addition.

Owns subclasses of prometheus_client's types that keep what `labels` found and take no locks: metrics are
written by the event loop's thread only, and a scrape runs in the same thread. Label sets are bounded
where labels are made (`telemetry.metrics`), so what is kept here is, too. What they expose is compared with
prometheus_client's own in the tests, because parts of it are relied on that are not documented.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any

import prometheus_client
from prometheus_client.samples import Exemplar


class _Kept:
    """Keeps the children by their label values; only positional values are given."""

    _kept: dict[tuple[Any, ...], Any]

    def labels(self, *labelvalues: object, **labelkwargs: object) -> Any:
        """Return the child with these label values."""
        try:
            return self._kept[labelvalues]
        except (AttributeError, KeyError):
            child = super().labels(*labelvalues, **labelkwargs)  # type: ignore[misc]
            if not labelkwargs:
                self.__dict__.setdefault("_kept", {})[labelvalues] = child
            return child


class _Number:
    """A value without a lock, in the shape of prometheus_client's own."""

    __slots__ = ("_exemplar", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._exemplar: Any = None

    def inc(self, amount: float) -> None:
        self._value += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        self._value = value

    def set_exemplar(self, exemplar: Any) -> None:
        self._exemplar = exemplar

    def note(self, labels: dict[str, str], value: float) -> None:
        """Keep what an exemplar is made of when somebody asks for it."""
        self._exemplar = (labels, value, time.time())

    def get(self) -> float:
        return self._value

    def get_exemplar(self) -> Any:
        kept = self._exemplar
        return kept if kept is None or isinstance(kept, Exemplar) else Exemplar(*kept)


class Counter(_Kept, prometheus_client.Counter):
    """A counter."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._value = _Number()

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add `amount`, which is not negative."""
        self._value._value += amount
        if exemplar is not None:
            self._value.note(exemplar, amount)


class Gauge(_Kept, prometheus_client.Gauge):
    """A gauge."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._value = _Number()

    def inc(self, amount: float = 1) -> None:
        """Add `amount`."""
        self._value._value += amount

    def dec(self, amount: float = 1) -> None:
        """Subtract `amount`."""
        self._value._value -= amount


class Histogram(_Kept, prometheus_client.Histogram):
    """A histogram."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._sum = _Number()
        self._buckets = [_Number() for _ in self._upper_bounds]

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count one observation; an exemplar's labels are the gateway's own and not looked at."""
        self._sum._value += amount
        bucket = self._buckets[bisect_left(self._upper_bounds, amount)]
        bucket._value += 1
        if exemplar is not None:
            bucket.note(exemplar, amount)
