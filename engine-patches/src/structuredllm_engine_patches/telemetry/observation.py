"""Values of one engine core's metrics: written by its loop and its compile threads, read by the scrape."""

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from structuredllm_engine_patches.telemetry.metrics import Counter, Gauge, Histogram, Metric


class State(StrEnum):
    """State of a patch in this process."""

    ACTIVE = "active"
    """In place."""

    SKIPPED = "skipped"
    """Not in place: it does not fit what is installed, or its module is not imported in this process."""

    DISABLED = "disabled"
    """Not in place because of the policy."""

    ELSEWHERE = "elsewhere"
    """It takes effect in processes of another kind, which check it themselves and do not start without it."""

    NOT_NEEDED = "not-needed"
    """Not in place: this version of vLLM does not have the fault."""

    UNAVAILABLE = "unavailable"
    """Not in place: this version of vLLM has the fault and the register says that it has no cure for it."""


@dataclass(frozen=True)
class PatchState:
    """State of one patch, as in /info.

    Attributes:
        patch_id: id in the register.
        state: see `State`.
        reason: why it is not active; empty when it is.
    """

    patch_id: str
    state: State
    reason: str = ""


Key = tuple[str, ...]


@dataclass
class Distribution:
    """Observed durations: how many per bucket (the last one is infinity's), and their sum in seconds."""

    counts: list[int]
    total: float = 0.0


@dataclass
class Observation:
    """Everything counted since the start of the engine core.

    Attributes:
        counts: value by counter and label values.
        distributions: durations by histogram and label values.
        readers: what is asked at the scrape, by gauge or counter and label values.
    """

    counts: dict[tuple[Counter, Key], float] = field(default_factory=dict)
    distributions: dict[tuple[Histogram, Key], Distribution] = field(default_factory=dict)
    readers: dict[tuple[Metric, Key], Callable[[], float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, counter: Counter, amount: float = 1, **labels: str) -> float:
        """Count `amount` events and return the new value; 0 shows the series before its first event.

        A series has to be seen at 0 first: otherwise a rate misses its first increment.
        """
        key = (counter, counter.key(labels))
        with self._lock:
            value = self.counts.get(key, 0) + amount
            self.counts[key] = value
        return value

    def value(self, counter: Counter, **labels: str) -> float:
        """Return a counter's value."""
        return self.counts.get((counter, counter.key(labels)), 0)

    def observe(self, histogram: Histogram, seconds: float, **labels: str) -> None:
        """Note one duration."""
        key = (histogram, histogram.key(labels))
        with self._lock:
            found = self.distributions.get(key)
            if found is None:
                found = self.distributions[key] = Distribution([0] * (len(histogram.buckets) + 1))
            found.counts[bisect.bisect_left(histogram.buckets, seconds)] += 1
            found.total += seconds

    def read(self, metric: Gauge | Counter, reader: Callable[[], float], **labels: str) -> None:
        """Ask `reader` for the value at each scrape; it runs in the scrape's thread and must not block."""
        self.readers[metric, metric.key(labels)] = reader
