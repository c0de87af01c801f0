"""From all cases to the few figures that are promised. Pure; only results of the same run are compared.

Interleaved rounds are compared round by round, and the median of the ratios counts: what the machine did
otherwise in a round has hurt both sides of its ratio.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tools.bench.gateway.contenders import DIRECT, LITELLM, OURS, VLLM_ROUTER

Results = Mapping[str, Mapping[str, Any]]

LIMITS = {
    "cpu_over_vllm_router": ("<=", 1.0),
    "cpu_over_litellm": ("<=", 0.01),
    "added_p50_over_vllm_router": ("<=", 1.1),
    "added_p99_over_vllm_router": ("<=", 1.0),
    "rate_at_p99_10ms": (">=", 5000.0),
    "sse_streams_held": (">=", 512),
    "sse_added_first_p99_us": ("<=", 500.0),
    "sse_lost_frames": ("<=", 0),
    "rss_mib": ("<=", 80.0),
    "rss_growth_mib_per_minute": ("<=", 0.1),
}
"""What the project promises of each figure."""


def summarize(results: Results) -> dict[str, Any]:
    """Return the figures; None where a contender that is needed for one is missing."""
    summary: dict[str, Any] = {
        "cpu_over_vllm_router": _cpu_over(results, VLLM_ROUTER),
        "cpu_over_litellm": _cpu_over(results, LITELLM),
        "added_p50_over_vllm_router": _added_over(results, VLLM_ROUTER, "p50"),
        "added_p99_over_vllm_router": _added_over(results, VLLM_ROUTER, "p99"),
        "rate_at_p99_10ms": highest_rate(results.get(OURS, {}).get("frontier", ())),
        **_streams(results),
    }
    memory = results.get(OURS, {}).get("memory")
    summary["rss_mib"] = memory["highest_mib"] if memory else None
    summary["rss_growth_mib_per_minute"] = memory["growth_mib_per_minute"] if memory else None
    summary["missed"] = sorted(name for name in LIMITS if _is_missed(name, summary[name]))
    return summary


def highest_rate(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the highest rate within the limit; None without any."""
    return max((step["rate"] for step in steps if step["within"]), default=None)


def added(results: Results, name: str, percentile: str) -> list[float]:
    """Return what a gateway adds to the engine's latency, round by round, in microseconds."""
    direct = results.get(DIRECT, {}).get("one", ())
    own = results.get(name, {}).get("one", ())
    return [mine[percentile] - base[percentile] for mine, base in zip(own, direct, strict=False)]


def _cpu_over(results: Results, other: str) -> float | None:
    pairs = zip(
        results.get(OURS, {}).get("closed", ()), results.get(other, {}).get("closed", ()), strict=False
    )
    return _median(mine["cpu_us_per_request"] / its["cpu_us_per_request"] for mine, its in pairs)


def _added_over(results: Results, other: str, percentile: str) -> float | None:
    # A difference of two latencies can come out as nothing on a noisy machine: no less than a microsecond.
    pairs = zip(added(results, OURS, percentile), added(results, other, percentile), strict=False)
    return _median(max(1.0, mine) / max(1.0, its) for mine, its in pairs)


def _streams(results: Results) -> dict[str, Any]:
    own, direct = (results.get(name, {}).get("streams", {}) for name in (OURS, DIRECT))
    held = [int(count) for count, case in own.items() if _is_held(case)]
    figures: dict[str, Any] = {
        "sse_streams_held": max(held, default=0) if own else None,
        "sse_added_first_p99_us": None,
        "sse_lost_frames": sum(case["lost_frames"] for case in own.values()) if own else None,
    }
    if own:
        most = max(own, key=int)
        if most in direct and own[most]["first"] and direct[most]["first"]:
            difference = own[most]["first"]["p99"] - direct[most]["first"]["p99"]
            figures["sse_added_first_p99_us"] = round(difference, 1)
    return figures


def _is_held(case: Mapping[str, Any]) -> bool:
    whole = not case["lost_frames"] and not case["failures"] and not case["unfinished"]
    return bool(whole and case["finished"] and not case["stalls"])


def _is_missed(name: str, value: float | None) -> bool:
    sign, limit = LIMITS[name]
    return value is None or (value > limit if sign == "<=" else value < limit)


def _median(ratios: Any) -> float | None:
    values = list(ratios)
    return round(median(values), 4) if values else None
