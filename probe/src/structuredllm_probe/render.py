"""The report as text for people and as an object for machines. Pure."""

from __future__ import annotations

from typing import Any

from structuredllm_probe.verdict import BurstReport


def as_object(report: BurstReport, *, url: str, model: str, seed: str) -> dict[str, Any]:
    """Return the report as JSON-able values; `seed` lets a reader repeat the very same requests."""
    return {
        "verdict": report.verdict.value,
        "reason": report.reason,
        "message": report.message,
        "counts": dict(report.counts),
        "requests": report.requests,
        "structured": report.structured,
        "duration_seconds": round(report.duration_seconds, 3),
        "url": url,
        "model": model,
        "seed": seed,
    }


def as_text(report: BurstReport, *, url: str, model: str, seed: str) -> str:
    """Return a table of the outcome classes and the verdict below it."""
    plain = report.requests - report.structured
    lines = [
        f"cold structured burst: {url}, model {model}, seed {seed}",
        f"{report.structured} structured and {plain} plain requests in {report.duration_seconds:.1f} s",
        "",
        f"  {'outcome':<26}{'requests':>8}",
        *(f"  {name:<26}{count:>8}" for name, count in report.counts.items()),
        "",
        f"{report.verdict.value} ({report.reason}): {report.message}",
    ]
    return "\n".join(lines)
