"""The gateway's Prometheus metrics, each with bounded labels.

Owns names, labels and buckets. One registry per app, none global. A model that discovery does not know and
a replica beyond the bound are counted as `other`, so clients cannot grow the label sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.keys.file import KeyFile
from structuredllm_gateway.relay.exchange import Route
from structuredllm_gateway.telemetry.connections import ConnectionCounts
from structuredllm_gateway.telemetry.histogram import LoopHistogram
from structuredllm_gateway.telemetry.series import Counter, Gauge, Histogram
from structuredllm_gateway.telemetry.visit import Visit
from structuredllm_gateway.upstream.endpoints import EndpointState, Snapshot

OTHER = "other"
_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_OWN_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_PART_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MAX_REPLICA_LABELS = 512
_MAX_SCHEMA_LABELS = 64
_SCHEMA_LABEL_CHARS = 16


class ReplicaFacts(Protocol):
    """What is read of the replicas at every scrape."""

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for a first replica."""
        ...

    def stale_seconds(self) -> float:
        """For how long discovery has been out of touch."""
        ...

    def quarantine_levels(self) -> Iterable[tuple[str, str, int]]:
        """Model, replica, and 1 where it is quarantined."""
        ...


class Metrics:
    """All metrics; the attribute names follow the metric names without prefix and unit."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Register on a fresh registry; `snapshot` is read at every scrape."""
        self.registry = CollectorRegistry()
        self._snapshot = snapshot
        self._replicas: set[str] = set()
        self._schemas: set[str] = set()
        self.connections = ConnectionCounts()
        self.key_file: KeyFile | None = None
        name = "structuredllm_gateway_{}".format
        self.requests = Counter(
            name("requests"),
            "Requests by what became of them.",
            ("model", "route", "code", "outcome"),
            registry=self.registry,
        )
        self.fsm_errors = Counter(
            name("fsm_errors"),
            "Answers that an engine ended because its grammar rejected a sampled token.",
            ("model", "replica", "schema", "backend"),
            registry=self.registry,
        )
        self.request_duration = Histogram(
            name("request_duration_seconds"),
            "From the first byte of the request to the last of the answer.",
            ("model", "route"),
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self.time_to_first_token = Histogram(
            name("time_to_first_token_seconds"),
            "From the first byte of a streamed request to the first part of its answer.",
            ("model",),
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.upstream_attempts = Counter(
            name("upstream_attempts"),
            "Tries on engines by why they were made: first, or the class of the try before.",
            ("model", "reason"),
            registry=self.registry,
        )
        self.unvalidated = Counter(
            name("unvalidated"),
            "Structured answers that passed without judgement, by why: grammar, structural_tag, echo, off.",
            ("model", "kind"),
            registry=self.registry,
        )
        self.refusals = Counter(
            name("request_refusals"),
            "Requests refused before an engine was asked, by the code of the rule.",
            ("rule",),
            registry=self.registry,
        )
        self.repairs = Counter(
            name("repairs"),
            "Repair attempts (a wrong answer asked for once more, its violation told) by what they gave.",
            ("model", "outcome"),
            registry=self.registry,
        )
        self.unenforced_keywords = Counter(
            name("unenforced_keywords"),
            "Requests whose schema uses a keyword that the model's grammar backend does not enforce.",
            ("model", "keyword"),
            registry=self.registry,
        )
        self.held_stream_bytes = Gauge(
            name("held_stream_bytes"), "Bytes of streams held until they are judged.", registry=self.registry
        )
        self.inflight_requests = Gauge(
            name("inflight_requests"), "Completion requests in flight.", registry=self.registry
        )
        self.own = Histogram(
            name("own_seconds"),
            "Part of a request's duration in which neither an engine nor the client was waited for.",
            ("model", "route"),
            buckets=_OWN_BUCKETS,
            registry=self.registry,
        )
        self.tokens = Counter(
            name("tokens"),
            "Tokens of answered requests as the engines count them; kind is prompt or completion.",
            ("model", "kind"),
            registry=self.registry,
        )
        self.key_refusals = Counter(
            name("key_refusals"),
            "Requests refused for their API key, by what was wrong.",
            ("reason",),
            registry=self.registry,
        )
        self.inter_token = LoopHistogram(
            name("inter_token_seconds"),
            "Time between two parts of a streamed answer.",
            "model",
            _PART_BUCKETS,
        )
        self.registry.register(self.inter_token)
        self.registry.register(_EndpointsCollector(snapshot))
        self.registry.register(_EdgeCollector(self))
        self.retry_budget_exhausted = Counter(
            name("retry_budget_exhausted"),
            "Retries that were not made because retries had become too large a share of the traffic.",
            ("model",),
            registry=self.registry,
        )
        self.quarantine_events = Counter(
            name("quarantine_events"),
            "Replicas quarantined, by the class that was one too many; withheld because none could be "
            "spared; released.",
            ("model", "reason"),
            registry=self.registry,
        )
        self.probe_bursts = Counter(
            name("probe_bursts"),
            "Bursts that the gateway itself sent, to end a quarantine or to gate a static endpoint.",
            ("model", "verdict"),
            registry=self.registry,
        )
        self._replica_facts = _ReplicasCollector(self.replica_label)
        self.registry.register(self._replica_facts)

    def watch(self, facts: ReplicaFacts) -> None:
        """Read the replicas' gauges off `facts` from now on."""
        self._replica_facts.facts = facts

    def model_label(self, model: str | None) -> str:
        """Return `model` when discovery knows it, else `other`."""
        return model if model is not None and model in self._snapshot().pools else OTHER

    def replica_label(self, replica: str) -> str:
        """Return `replica` while few enough are known, else `other`."""
        if replica not in self._replicas:
            if len(self._replicas) >= _MAX_REPLICA_LABELS:
                return OTHER
            self._replicas.add(replica)
        return replica

    def schema_label(self, key: str | None) -> str:
        """Return a short form of a schema's hash while few enough are known, else `other`; "" for none."""
        if key is None:
            return ""
        short = key[:_SCHEMA_LABEL_CHARS]
        if short not in self._schemas:
            if len(self._schemas) >= _MAX_SCHEMA_LABELS:
                return OTHER
            self._schemas.add(short)
        return short

    def visited(self, visit: Visit, model: str, route: str, seconds: float) -> None:
        """Count what was measured of a finished request of `seconds`, with its trace as the exemplar."""
        exemplar = {"trace_id": visit.trace_id} if visit.trace_id else None
        self.request_duration.labels(model, route).observe(seconds, exemplar)
        self.own.labels(model, route).observe(visit.own_seconds(seconds), exemplar)
        if visit.prompt_tokens is not None:
            self.tokens.labels(model, "prompt").inc(visit.prompt_tokens)
        if visit.completion_tokens is not None:
            self.tokens.labels(model, "completion").inc(visit.completion_tokens)

    def refused_key(self, error: KeyRefusedError, path: str) -> None:
        """Count a refusal; those of completion routes are requests like others."""
        self.key_refusals.labels(error.reason).inc()
        route = _ROUTES.get(path)
        if route is not None:
            self.requests.labels(OTHER, route, str(error.status), error.outcome.value).inc()


_ROUTES = {route.path: route.value for route in Route}


class _EdgeCollector(Collector):
    """The state of keys and client connections, read off at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        name = "structuredllm_gateway_{}".format
        keys, counts = self._metrics.key_file, self._metrics.connections
        yield GaugeMetricFamily(
            name("keys"), "API keys that are known.", value=len(keys.table.names) if keys is not None else 0
        )
        yield CounterMetricFamily(
            name("key_file_errors"),
            "Contents of the key file that could not be used.",
            value=keys.errors if keys is not None else 0,
        )
        yield GaugeMetricFamily(
            name("key_file_stale"),
            "1 while the key file on disk cannot be used, so that older keys, or none, are in force.",
            value=float(keys is not None and keys.is_stale),
        )
        yield GaugeMetricFamily(name("connections"), "Client connections that are open.", value=counts.open)
        ended = CounterMetricFamily(
            name("connections_ended"),
            "Client connections that the gateway ended for a reason of its own.",
            labels=("reason",),
        )
        for reason, number in counts.ended.items():
            ended.add_metric((reason.value,), number)
        yield ended


class _EndpointsCollector(Collector):
    """Gauges read off the snapshot at each scrape, so that a model that is gone leaves no series behind."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        view = self._snapshot()
        endpoints = GaugeMetricFamily(
            "structuredllm_gateway_endpoints", "Engines by model and state.", labels=("model", "state")
        )
        for pool in view.pools.values():
            for state in EndpointState:
                count = sum(endpoint.state is state for endpoint in pool.endpoints)
                endpoints.add_metric((pool.model, state.value), count)
        yield endpoints
        yield GaugeMetricFamily(
            "structuredllm_gateway_discovery_stale",
            "1 while endpoints are the last known because their source cannot be reached.",
            value=float(view.stale),
        )


class _ReplicasCollector(Collector):
    """Gauges of the replicas, read off the roster at each scrape."""

    def __init__(self, replica_label: Callable[[str], str]) -> None:
        self.facts: ReplicaFacts | None = None
        self._replica_label = replica_label

    def collect(self) -> Iterator[Metric]:
        facts = self.facts
        quarantine = GaugeMetricFamily(
            "structuredllm_gateway_quarantine",
            "1 while the gateway keeps structured requests, or all, away from the replica.",
            labels=("model", "replica"),
        )
        levels: dict[tuple[str, str], int] = {}
        for model, replica, level in facts.quarantine_levels() if facts is not None else ():
            key = (model, self._replica_label(replica))
            levels[key] = max(level, levels.get(key, 0))
        for labels, level in levels.items():
            quarantine.add_metric(labels, level)
        yield quarantine
        yield GaugeMetricFamily(
            "structuredllm_gateway_waiting_requests",
            "Requests that wait because no replica of their model is ready yet.",
            value=facts.waiting_requests if facts is not None else 0,
        )
        yield GaugeMetricFamily(
            "structuredllm_gateway_discovery_stale_seconds",
            "For how long endpoints have been the last known ones; 0 while discovery is in touch.",
            value=facts.stale_seconds() if facts is not None else 0,
        )
