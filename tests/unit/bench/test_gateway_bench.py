"""The figures of the gateway's benchmark: ratios inside a round, what is held, what is missed."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tools.bench.gateway.contenders import CONTENDERS, DIRECT, LITELLM, OURS, VLLM_ROUTER
from tools.bench.gateway.measure import is_within, slope
from tools.bench.gateway.mock_upstream import frames, whole_answer
from tools.bench.gateway.picture import draw
from tools.bench.gateway.summary import LIMITS, summarize


def _one(*values: tuple[float, float]) -> list[dict[str, float]]:
    return [{"p50": p50, "p99": p99} for p50, p99 in values]


def _cpu(*values: float) -> list[dict[str, float]]:
    return [{"cpu_us_per_request": value} for value in values]


def _stream(**changed: Any) -> dict[str, Any]:
    case = {"lost_frames": 0, "failures": 0, "unfinished": 0, "finished": 5, "stalls": 0}
    return {**case, "first": {"p99": 900.0}, **changed}


def _results() -> dict[str, dict[str, Any]]:
    return {
        DIRECT: {"one": _one((100, 200), (300, 400)), "streams": {"512": _stream(first={"p99": 500.0})}},
        OURS: {
            "one": _one((150, 280), (352, 500)),
            "closed": _cpu(50, 500),
            "frontier": [{"rate": 4000.0, "within": True}, {"rate": 6000.0, "within": True}],
            "streams": {"64": _stream(), "512": _stream()},
            "memory": {"highest_mib": 70.0, "growth_mib_per_minute": 0.02},
        },
        VLLM_ROUTER: {"one": _one((150, 300), (350, 500)), "closed": _cpu(60, 500)},
        LITELLM: {"closed": _cpu(10_000, 60_000)},
    }


def test_ratios_are_taken_inside_a_round_and_the_median_counts() -> None:
    summary = summarize(_results())
    assert summary["cpu_over_vllm_router"] == pytest.approx((50 / 60 + 1) / 2, abs=1e-4)
    assert summary["cpu_over_litellm"] == pytest.approx((50 / 10_000 + 500 / 60_000) / 2, abs=1e-4)
    assert summary["added_p50_over_vllm_router"] == pytest.approx((1 + 52 / 50) / 2, abs=1e-4)
    assert summary["rate_at_p99_10ms"] == 6000
    assert (summary["sse_streams_held"], summary["sse_added_first_p99_us"]) == (512, 400.0)
    assert summary["missed"] == []


@pytest.mark.parametrize("missing", [VLLM_ROUTER, LITELLM])
def test_ratio_without_its_other_side_is_null_and_missed(missing: str) -> None:
    results = _results()
    del results[missing]
    summary = summarize(results)
    name = "cpu_over_litellm" if missing == LITELLM else "cpu_over_vllm_router"
    assert summary[name] is None
    assert name in summary["missed"]


@pytest.mark.parametrize("fault", ["lost_frames", "failures", "unfinished", "stalls"])
def test_streams_with_any_fault_are_not_held(fault: str) -> None:
    results = _results()
    results[OURS]["streams"]["512"] = _stream(**{fault: 1})
    summary = summarize(results)
    assert summary["sse_streams_held"] == 64
    assert "sse_streams_held" in summary["missed"]


@pytest.mark.parametrize(
    ("changed", "within"),
    [({}, True), ({"p99": 30_001.0}, False), ({"failures": 1}, False), ({"unanswered": 1}, False)],
)
def test_step_of_the_frontier_counts_only_whole(changed: dict[str, Any], within: bool) -> None:
    assert is_within({"p99": 29_999.0, "failures": 0, "unanswered": 0, **changed}) is within


def test_growth_is_the_slope_of_the_line() -> None:
    assert slope([(0, 10), (1, 12), (2, 14)]) == pytest.approx(2)
    assert slope([(0, 10)]) == 0


def test_every_figure_has_a_promise_and_an_empty_run_misses_all() -> None:
    assert summarize({})["missed"] == sorted(LIMITS)


def test_picture_is_svg_with_every_gateway() -> None:
    steps = [
        {"rate": 400.0, "p99": 21_000.0, "within": True},
        {"rate": 800.0, "p99": 90_000.0, "within": False},
    ]
    root = ElementTree.fromstring(draw("a < b", {OURS: steps, "other": []}, 30.0))  # noqa: S314 - our own
    text = " ".join(element.text or "" for element in root.iter())
    assert f"{OURS}: 400/s" in text
    assert "other: missing" in text


def test_mock_engine_answers_what_the_schema_asks_for() -> None:
    events = frames(64)
    assert len(events) == 65
    assert events[-1] == b"data: [DONE]\n\n"
    assert sum(b'"finish_reason": "stop"' in event for event in events) == 1
    assert b'"choices"' in whole_answer()


def test_contenders_are_pinned() -> None:
    assert [item.package for item in CONTENDERS if item.package] == [
        "vllm-router==0.1.17",
        "smg==1.13.0",
        "litellm[proxy]==1.106.12",
    ]
