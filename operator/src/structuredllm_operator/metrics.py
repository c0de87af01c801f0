"""The operator's Prometheus metrics, on a registry of its own.

Owns names and label sets. Labels are bounded: namespaces and names of existing resources, and fixed reasons.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._duration = Histogram(
            "structuredllm_operator_reconcile_duration_seconds",
            "Time of one reconcile of one resource.",
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._reconciles = Counter(
            "structuredllm_operator_reconcile_total",
            "Reconciles by result: ok, error.",
            ["result"],
            registry=self.registry,
        )
        self._bursts = Counter(
            "structuredllm_operator_gate_bursts_total",
            "Cold structured bursts by verdict (healthy, faulty, unknown) and reason.",
            ["verdict", "reason"],
            registry=self.registry,
        )
        self._gate_failing = Gauge(
            "structuredllm_operator_gate_failing",
            "1 while pods of the resource are kept out of service because bursts failed.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._ready = Gauge(
            "structuredllm_operator_resource_ready",
            "1 while the resource's condition Ready is True.",
            ["namespace", "name"],
            registry=self.registry,
        )

    def reconcile(self, *, seconds: float, ok: bool) -> None:
        """Count one reconcile."""
        self._duration.observe(seconds)
        self._reconciles.labels("ok" if ok else "error").inc()

    def burst(self, *, verdict: str, reason: str) -> None:
        """Count one finished burst."""
        self._bursts.labels(verdict, reason).inc()

    def resource(self, namespace: str, name: str, *, ready: bool, gate_failing: bool) -> None:
        """Set the state of one resource."""
        self._ready.labels(namespace, name).set(ready)
        self._gate_failing.labels(namespace, name).set(gate_failing)

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a resource that is gone."""
        for gauge in (self._ready, self._gate_failing):
            gauge.remove_by_labels({"namespace": namespace, "name": name})
