"""Writes docs/reference/engine-metrics.md from the metrics' definitions; `--check` compares."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from structuredllm_engine_patches.telemetry.metrics import METRICS, Counter, Histogram, Metric
from tools.paths import repo_root

HEADER = """\
# Metrics of the engine

Served by the patch package on the telemetry port (9464) of every engine core at `/metrics`, also with the
patches disabled; `/info` has the facts as JSON. Generated from `telemetry/metrics.py`; do not edit.

Every label has few values: a value that is not listed is shown as `other`. "a fact" stands for one value
that does not change while the engine runs.

| Series | Type | Labels | Meaning |
|---|---|---|---|
"""


def page_path() -> Path:
    """Return the committed page."""
    return repo_root() / "docs" / "reference" / "engine-metrics.md"


def render(metrics: Sequence[Metric] = METRICS) -> str:
    """Return the page as Markdown."""
    return HEADER + "".join(_row(metric) for metric in metrics)


def _row(metric: Metric) -> str:
    kind, suffix = "gauge", ""
    if isinstance(metric, Counter):
        kind, suffix = "counter", "_total"
    elif isinstance(metric, Histogram):
        kind = f"histogram, seconds, up to {metric.buckets[-1]:g}"
    labels = "; ".join(
        f"`{name}`: {', '.join(values) if values else 'a fact'}" for name, values in metric.labels.items()
    )
    return f"| `{metric.name}{suffix}` | {kind} | {labels or 'none'} | {metric.help} |\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check return 1 if the committed one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.gen_engine_metrics", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    options = parser.parse_args(argv)
    page = page_path()
    if not options.check:
        page.write_text(render())
        return 0
    if page.is_file() and page.read_text() == render():
        return 0
    print(f"{page} is out of date: run python -m tools.gen_engine_metrics", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
