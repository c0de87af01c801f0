"""The metrics of an engine core, as data: names, meaning, labels with all values that they can take.

Pure. `docs/reference/engine-metrics.md`, the tests of alerts and dashboards and /metrics are made from
these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from structuredllm_engine_patches.guided.causes import Cause

OTHER = "other"
"""Label value of whatever is not among a label's known values: label values must be few."""

BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer", OTHER)


@dataclass(frozen=True)
class Metric:
    """What all kinds have in common.

    Attributes:
        name: full name without the suffix that its kind gets (`_total`, `_bucket`).
        help: one sentence.
        labels: label name to the values that it can take.
    """

    name: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the label values in order; unknown values become `other`.

        Raises:
            ValueError: the label names are not the metric's.
        """
        if labels.keys() != self.labels.keys():
            raise ValueError(f"{self.name} has the labels {sorted(self.labels)}, not {sorted(labels)}")
        return tuple(
            value if (value := labels[name]) in known else OTHER for name, known in self.labels.items()
        )


@dataclass(frozen=True)
class Counter(Metric):
    """Counts events since the start of the engine core."""


@dataclass(frozen=True)
class Gauge(Metric):
    """A value of the moment, read at the scrape."""


@dataclass(frozen=True)
class Histogram(Metric):
    """Durations in seconds.

    Attributes:
        buckets: upper bounds in seconds, ascending, without infinity.
    """

    buckets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Facts(Metric):
    """Always 1; its labels say what does not change while the engine core runs (no known values listed)."""


PATCH_INFO = Facts(
    "structuredllm_engine_patch_info",
    "State of each patch in this engine core, always 1.",
    {
        "id": (),
        "vllm": (),
        "state": ("active", "skipped", "disabled", "elsewhere", "not-needed", "unavailable"),
    },
)
TOPOLOGY_INFO = Facts(
    "structuredllm_engine_topology_info",
    "Sizes of the engine's parallel groups and how it schedules, always 1.",
    {
        "tensor_parallel_size": (),
        "pipeline_parallel_size": (),
        "data_parallel_size": (),
        "async_scheduling": ("true", "false"),
        "backend": (),
    },
)
GRAMMAR_REJECTS = Counter(
    "structuredllm_engine_grammar_rejects",
    "Requests ended because their grammar refused a sampled token.",
    {"backend": BACKENDS},
)
GRAMMAR_RECOVERIES = Counter(
    "structuredllm_engine_grammar_recoveries",
    "Sampled tokens that a grammar refused and whose request was rolled back and went on.",
)
GRAMMAR_FAILURES = Counter(
    "structuredllm_engine_grammar_failures",
    "Structured requests that ended in the engine core without an answer, by the cause that the client sees.",
    {"cause": tuple(cause.value for cause in Cause)},
)
COMPILE_SECONDS = Histogram(
    "structuredllm_engine_compile_seconds",
    "Time from the wish for a compiled grammar to its end, waiting included; what is cached does not count.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
COMPILE_FAILURES = Counter(
    "structuredllm_engine_compile_failures",
    "Compilations that ended without a grammar.",
    {"cause": tuple(cause.value for cause in Cause)},
)
COMPILE_WORKERS_BUSY = Gauge(
    "structuredllm_engine_compile_workers_busy", "Compile workers that compile something."
)
COMPILE_WORKERS_LOST = Counter(
    "structuredllm_engine_compile_workers_lost",
    "Compile workers that were killed at a limit or crashed, and were replaced.",
    {"reason": ("timeout", "memory", "crowded", "crash")},
)
STALE_MASKS = Counter(
    "structuredllm_engine_stale_mask",
    "Masks built while an earlier token of their request was still in flight; must stay 0.",
)
DRAINED_BATCHES = Counter(
    "structuredllm_engine_drained_batches",
    "Queued batches that the drain processed before a mask was built.",
)
UNVERIFIED_DRAFTS = Counter(
    "structuredllm_engine_unverified_drafts",
    "Drafts of structured requests that their grammar refused or never saw; no worker takes one.",
)
MASK_FILL = Histogram(
    "structuredllm_engine_mask_fill_seconds",
    "Time that the engine core's loop took to build the masks of one batch.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
IN_FLIGHT_STEPS = Gauge("structuredllm_engine_in_flight_steps", "Batches scheduled and not yet processed.")
PIPELINE_SLOTS = Gauge(
    "structuredllm_engine_pipeline_slots",
    "Batches that may be in flight at a time (size of the batch queue).",
)
PIPELINE_SLOTS_USED = Gauge(
    "structuredllm_engine_pipeline_slots_used", "Batches in flight that have tokens to compute."
)
STRUCTURED_REQUESTS = Gauge(
    "structuredllm_engine_structured_requests",
    "Structured requests in the scheduler: being decoded, waiting for their grammar, or waiting for a slot.",
    {"state": ("running", "waiting_for_grammar", "waiting")},
)

METRICS: tuple[Metric, ...] = (
    PATCH_INFO,
    TOPOLOGY_INFO,
    GRAMMAR_REJECTS,
    GRAMMAR_RECOVERIES,
    GRAMMAR_FAILURES,
    COMPILE_SECONDS,
    COMPILE_FAILURES,
    COMPILE_WORKERS_BUSY,
    COMPILE_WORKERS_LOST,
    STALE_MASKS,
    DRAINED_BATCHES,
    UNVERIFIED_DRAFTS,
    MASK_FILL,
    IN_FLIGHT_STEPS,
    PIPELINE_SLOTS,
    PIPELINE_SLOTS_USED,
    STRUCTURED_REQUESTS,
)
