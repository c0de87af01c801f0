"""Ratios of the measurements; only results of the same run are compared. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.bench.engine.cases import DRAIN, PATCHED, SYNC, UPSTREAM, Arm, Kind

Result = Mapping[str, Any]


def summarize(results: Sequence[Result]) -> dict[str, Any]:
    """Return the summary: each figure is the worst of its cases, `details` says which that is and has all.

    The figures are those of the arm with all patches; `phases_off` has the same for the drain alone.
    """
    figures, details = _figures(results, PATCHED)
    off, off_details = _figures(results, DRAIN)
    return {
        **figures,
        "failed_cases": [
            _full_name(r) for r in results if r["state"] != "right" and r["arm"] != UPSTREAM.name
        ],
        "upstream_faulty_cases": sum(r["state"] != "right" for r in results if r["arm"] == UPSTREAM.name),
        "same_tokens": _same_tokens(results),
        "phases_off": off,
        "details": {**details, "phases_off": off_details},
    }


def _figures(results: Sequence[Result], arm: Arm) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an arm's figures, and what they are the worst of."""
    structured, plain = (arm.name, Kind.STRUCTURED), (arm.name, Kind.PLAIN)
    over_plain = _ratios(results, structured, plain)
    over_sync = _ratios(results, structured, (SYNC.name, Kind.STRUCTURED))
    over_upstream = _ratios(results, plain, (UPSTREAM.name, Kind.PLAIN))
    used = {
        _name(r): max(r["stage_time_used"]) for r in results if r["arm"] == arm.name and r["state"] == "right"
    }
    growing = {name: value for name, value in over_sync.items() if "tokens" in name}
    bursts = {name: value for name, value in growing.items() if "burst" in name}
    figures = {
        "structured_over_unstructured": _worst(over_plain),
        "structured_async_over_sync": _worst(over_sync),
        "structured_async_over_sync_growing": _worst(growing),
        "structured_async_over_sync_growing_bursts": _worst(bursts),
        "stage_time_used": _worst(used),
        "stage_time_used_busiest": max(used.values(), default=None),
        "unstructured_async_over_upstream": _worst(over_upstream),
    }
    details = {
        "structured_over_unstructured": over_plain,
        "structured_async_over_sync": over_sync,
        "unstructured_async_over_upstream": over_upstream,
        "stage_time_used": used,
    }
    return figures, details


def _ratios(
    results: Sequence[Result],
    over: tuple[str, Kind],
    under: tuple[str, Kind],
) -> dict[str, float]:
    """Return tokens per second of one (arm, kind) over another, by case without its kind."""
    rates = {
        (r["arm"], r["kind"], _case(r)): r["tokens_per_second"] for r in results if r["state"] == "right"
    }
    return {
        case: round(rate / below, 3)
        for (arm, kind, case), rate in rates.items()
        if (arm, kind) == (over[0], over[1].value)
        and (below := rates.get((under[0], under[1].value, case), 0)) > 0
    }


def _same_tokens(results: Sequence[Result]) -> dict[str, Any]:
    """Return in how many cases an arm's token ids are exactly those of synchronous scheduling."""
    digests = {(r["arm"], r["kind"], _case(r)): r["digest"] for r in results if r["state"] == "right"}
    compared = [
        (arm, kind, case, digest == digests[SYNC.name, kind, case])
        for (arm, kind, case), digest in digests.items()
        if arm != SYNC.name and (SYNC.name, kind, case) in digests
    ]
    return {
        "cases": len(compared),
        "equal": sum(equal for *_, equal in compared),
        "different": [f"{arm} {case} {kind}" for arm, kind, case, equal in compared if not equal],
    }


def _worst(ratios: Mapping[str, float]) -> float | None:
    return min(ratios.values(), default=None)


def _case(result: Result) -> str:
    return f"PP={result['pipeline']} {result['stage_time']} {result['arrival']} {result['requests']}"


def _name(result: Result) -> str:
    return f"{_case(result)} {result['kind']}"


def _full_name(result: Result) -> str:
    return f"{result['arm']} {_name(result)}: {result['wrong']} wrong, {result['errors']}"
