"""Cheap metrics expose exactly what prometheus_client's own would."""

from __future__ import annotations

from typing import Any

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition

from structuredllm_gateway.telemetry import series

_LABELS = st.sampled_from([("a", "1"), ("a", "2"), ("b\n", '"')])
_EXEMPLARS = st.none() | st.just({"trace_id": "0" * 32})
_STEPS = st.tuples(st.sampled_from(["counter", "gauge", "histogram"]), _LABELS, st.floats(0, 20), _EXEMPLARS)


def _metrics(made: Any) -> tuple[CollectorRegistry, dict[str, Any]]:
    registry = CollectorRegistry()
    names = ("model", "route")
    return registry, {
        "counter": made.Counter("c", "A counter.", names, registry=registry),
        "gauge": made.Gauge("g", "A gauge.", names, registry=registry),
        "histogram": made.Histogram("h", "A histogram.", names, buckets=(0.1, 1, 10), registry=registry),
    }


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(_STEPS, max_size=30))
def test_exposition_is_that_of_prometheus_client(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: 1.5)
        texts = []
        for made in (series, prometheus_client):
            registry, metrics = _metrics(made)
            for kind, labels, amount, exemplar in steps:
                child = metrics[kind].labels(*labels)
                if kind == "histogram":
                    child.observe(amount, exemplar)
                elif kind == "counter":
                    child.inc(amount, exemplar)
                else:
                    child.inc(amount)
                    child.dec(1)
            write: Any = exposition.generate_latest
            texts.append((generate_latest(registry), write(registry)))
    assert texts[0] == texts[1]


def test_labels_are_looked_up_once() -> None:
    counter = series.Counter("c", "A counter.", ("model",), registry=None)
    assert counter.labels("a") is counter.labels("a")
    assert counter.labels("a") is not counter.labels("b")
    with pytest.raises(ValueError, match="Incorrect label count"):
        counter.labels("a", "b")


def test_metrics_without_labels_count() -> None:
    registry = CollectorRegistry()
    gauge = series.Gauge("g", "A gauge.", registry=registry)
    gauge.inc()
    gauge.set(5)
    gauge.dec()
    assert registry.get_sample_value("g") == 4
