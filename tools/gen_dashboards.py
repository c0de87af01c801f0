"""Writes the Grafana dashboards of the chart as JSON.

Owns the panels: what a reader sees first, which question each panel answers and its query. Plain dicts in
Grafana's dashboard schema, so a diff of the JSON is a diff of the panels. Every metric that is named here
must be exported by the packages' code (tests/chart/test_dashboards.py checks both directions).

Run: python -m tools.gen_dashboards [--check]
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from structuredllm_engine_patches.telemetry.metrics import METRICS, Counter, Facts, Histogram, Metric
from tools.paths import repo_root

SCHEMA_VERSION = 39  # Grafana 11; older ones ignore what they do not know
GRID_WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
STRUCTURED = (
    "ok|not_json|schema_violation|trailing_or_leading_text|truncated|empty|grammar_rejected|stream_error"
    "|in_reasoning|whitespace_runaway|finish_abnormal|stream_aborted|stream_empty"
)
GATEWAY = 'namespace=~"$namespace",model=~"$model"'
NAMESPACE = 'namespace=~"$namespace"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel: `width` in Grafana's 24 columns, `height` in rows, `unit` a Grafana unit id."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: tuple[tuple[float | None, str], ...] = field(default=((None, "green"),))


def _stat(title: str, description: str, expr: str, unit: str, *steps: tuple[float | None, str]) -> Panel:
    return Panel(title, description, (Query(expr),), "stat", unit, width=4, height=4, thresholds=steps)


def _quantiles(metric: str, selector: str, by: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    prefix = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by ({labels}) (rate({metric}_bucket{{{selector}}}{RATE})))",
            f"{prefix}p{name}",
        )
        for quantile, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"))
    )


def _rate(metric: str, selector: str, by: str) -> Query:
    return Query(
        f"sum by ({by}) (rate({metric}{{{selector}}}{RATE}))",
        " ".join(f"{{{{{b}}}}}" for b in by.split(", ")),
    )


OVERVIEW = (
    _stat(
        "Valid structured answers",
        "Share of the structured requests whose final answer parsed and matched its schema.",
        f'sum(rate(structuredllm_gateway_requests_total{{{GATEWAY},outcome="ok"}}{RATE}))'
        " / (sum(rate(structuredllm_gateway_requests_total"
        f'{{{GATEWAY},outcome=~"{STRUCTURED}"}}{RATE})) > 0)',
        "percentunit",
        (None, "red"),
        (0.99, "orange"),
        (0.999, "green"),
    ),
    _stat(
        "Grammar rejects",
        "Rejects that the gateway saw in the chosen time range, also those that a second attempt hid.",
        f"sum(increase(structuredllm_gateway_fsm_errors_total{{{GATEWAY}}}[$__range])) or vector(0)",
        "short",
        (None, "green"),
        (1, "red"),
    ),
    _stat(
        "Stale masks",
        "Masks built before the earlier tokens were accepted, in the chosen time range. Must be 0.",
        f"sum(increase(structuredllm_engine_stale_mask_total{{{NAMESPACE}}}[$__range])) or vector(0)",
        "short",
        (None, "green"),
        (1, "red"),
    ),
    _stat(
        "Resources not Ready",
        "StructuredLLM resources whose condition Ready is not True.",
        "count(max by (namespace, name) "
        f"(structuredllm_operator_resource_ready{{{NAMESPACE}}}) == 0) or vector(0)",
        "short",
        (None, "green"),
        (1, "orange"),
    ),
    _stat(
        "Gates failing",
        "Resources with a pod that runs but fails the cold structured burst.",
        f"sum(max by (namespace, name) (structuredllm_operator_gate_failing{{{NAMESPACE}}})) or vector(0)",
        "short",
        (None, "green"),
        (1, "red"),
    ),
    _stat(
        "Requests in flight",
        "Requests that the gateways hold at this moment.",
        f"sum(structuredllm_gateway_inflight_requests{{{NAMESPACE}}})",
        "short",
        (None, "blue"),
    ),
    Panel(
        "Outcomes",
        "Finished requests by outcome class; `plain` asked for no structure.",
        (_rate("structuredllm_gateway_requests_total", GATEWAY, "outcome"),),
        unit="reqps",
        width=12,
        stacked=True,
    ),
    Panel(
        "Grammar rejects by replica",
        "One replica high: restart it. All replicas high: wrong patches or a bad engine image.",
        (_rate("structuredllm_gateway_fsm_errors_total", GATEWAY, "model, replica"),),
        unit="reqps",
        width=12,
    ),
)

GATEWAY_PANELS = (
    Panel(
        "Requests by status code",
        "Finished requests by route and HTTP status.",
        (_rate("structuredllm_gateway_requests_total", GATEWAY, "route, code"),),
        unit="reqps",
    ),
    Panel(
        "Request duration",
        "From the first byte of the request to the last of the answer.",
        _quantiles("structuredllm_gateway_request_duration_seconds", GATEWAY),
        unit="s",
    ),
    Panel(
        "Time to first token",
        "Streamed requests: until the first piece of the answer left the gateway.",
        _quantiles("structuredllm_gateway_time_to_first_token_seconds", GATEWAY),
        unit="s",
    ),
    Panel(
        "The gateway's own time",
        "Part of a request in which neither an engine nor the client was waited for.",
        _quantiles("structuredllm_gateway_own_seconds", GATEWAY),
        unit="s",
    ),
    Panel(
        "Time between tokens",
        "Between two parts of a streamed answer.",
        _quantiles("structuredllm_gateway_inter_token_seconds", GATEWAY),
        unit="s",
    ),
    Panel(
        "Tokens",
        "Tokens a second as the engines count them: of prompts, and of answers (completion).",
        (_rate("structuredllm_gateway_tokens_total", GATEWAY, "model, kind"),),
    ),
    Panel(
        "Requests refused for their key",
        "401, 403 and 429: unknown key, model that is not allowed, allowance used up.",
        (_rate("structuredllm_gateway_key_refusals_total", NAMESPACE, "reason"),),
        unit="reqps",
    ),
    Panel(
        "API keys",
        "Keys in force; `stale` is 1 while the key file on disk cannot be used, `errors` counts those.",
        (
            Query(f"max by (pod) (structuredllm_gateway_keys{{{NAMESPACE}}})", "{{pod}} keys"),
            Query(f"max by (pod) (structuredllm_gateway_key_file_stale{{{NAMESPACE}}})", "{{pod}} stale"),
            Query(
                f"sum by (pod) (increase(structuredllm_gateway_key_file_errors_total{{{NAMESPACE}}}{RATE}))",
                "{{pod}} errors",
            ),
        ),
    ),
    Panel(
        "Client connections",
        "Open connections, and those the gateway ended by itself: slow, too large, too many.",
        (
            Query(f"sum by (pod) (structuredllm_gateway_connections{{{NAMESPACE}}})", "{{pod}} open"),
            _rate("structuredllm_gateway_connections_ended_total", NAMESPACE, "reason"),
        ),
    ),
    Panel(
        "Upstream attempts by reason",
        "Attempts sent to engines and why; everything but the first attempt is a retry.",
        (_rate("structuredllm_gateway_upstream_attempts_total", GATEWAY, "model, reason"),),
        unit="reqps",
    ),
    Panel(
        "Unvalidated answers",
        "Structured answers that passed without judgement, by why: grammar, structural_tag, echo, or off.",
        (_rate("structuredllm_gateway_unvalidated_total", GATEWAY, "model, kind"),),
        unit="reqps",
    ),
    Panel(
        "Endpoints by state",
        "Engine pods that the gateways know: serving, gated (not proven yet) or terminating.",
        (
            Query(
                f"max by (model, state) (structuredllm_gateway_endpoints{{{GATEWAY}}})",
                "{{model}} {{state}}",
            ),
        ),
    ),
    Panel(
        "Stale discovery",
        "1 while a gateway routes by the last endpoints it knew, because it cannot reach the API server.",
        (Query(f"max by (pod) (structuredllm_gateway_discovery_stale{{{NAMESPACE}}})", "{{pod}}"),),
    ),
    Panel(
        "Requests refused before an engine",
        "Refusals by the rule's code; docs/reference/gateway-admission.md says what each rule bounds.",
        (_rate("structuredllm_gateway_request_refusals_total", NAMESPACE, "rule"),),
        unit="reqps",
    ),
    Panel(
        "Schemas that the grammar does not enforce",
        "Requests with a keyword that the grammar backend lets pass; only validation sees violations.",
        (_rate("structuredllm_gateway_unenforced_keywords_total", GATEWAY, "model, keyword"),),
        unit="reqps",
    ),
    Panel(
        "Repair attempts",
        "Wrong answers asked for once more with their violation told to the model, by what that gave.",
        (_rate("structuredllm_gateway_repairs_total", GATEWAY, "model, outcome"),),
        unit="reqps",
    ),
    Panel(
        "Held streams",
        "Bytes of streams that are held until they are judged (streaming Buffer).",
        (Query(f"sum by (pod) (structuredllm_gateway_held_stream_bytes{{{NAMESPACE}}})", "{{pod}}"),),
        unit="bytes",
    ),
    Panel(
        "Discovery out of touch for",
        "For how long the endpoints have been the last known ones.",
        (Query(f"max by (pod) (structuredllm_gateway_discovery_stale_seconds{{{NAMESPACE}}})", "{{pod}}"),),
        unit="s",
    ),
    Panel(
        "Quarantined replicas",
        "1 while a gateway keeps structured requests, or all, from the replica; /debug/replicas says why.",
        (
            Query(
                f"max by (model, replica) (structuredllm_gateway_quarantine{{{GATEWAY}}}) > 0",
                "{{model}} {{replica}}",
            ),
        ),
    ),
    Panel(
        "Quarantine events",
        "Quarantines by the class that was one too many; released; withheld: none could be spared.",
        (_rate("structuredllm_gateway_quarantine_events_total", GATEWAY, "model, reason"),),
        unit="ops",
    ),
    Panel(
        "Bursts of the gateway",
        "Sent to end a quarantine or to gate a static endpoint, by verdict.",
        (_rate("structuredllm_gateway_probe_bursts_total", GATEWAY, "model, verdict"),),
        unit="ops",
    ),
    Panel(
        "Retries not made",
        "The retry budget was used up: failures are too large a share of the traffic for retries to help.",
        (_rate("structuredllm_gateway_retry_budget_exhausted_total", GATEWAY, "model"),),
        unit="ops",
    ),
    Panel(
        "Requests waiting for a replica",
        "No replica of their model is ready yet.",
        (Query(f"sum by (pod) (structuredllm_gateway_waiting_requests{{{NAMESPACE}}})", "{{pod}}"),),
    ),
)

ENGINE_PANELS = (
    Panel(
        "Grammar rejects in the engine",
        "Counted in the engine core itself, whoever sent the request.",
        (_rate("structuredllm_engine_grammar_rejects_total", NAMESPACE, "pod, backend"),),
        unit="reqps",
    ),
    Panel(
        "Stale masks",
        "Violations of the order invariant. Anything above 0 is a fault of the engine or the patch.",
        (_rate("structuredllm_engine_stale_mask_total", NAMESPACE, "pod"),),
        unit="ops",
    ),
    Panel(
        "Drained batches",
        "Batches that the patch drained before it built a mask; the patch at work, not a fault.",
        (_rate("structuredllm_engine_drained_batches_total", NAMESPACE, "pod"),),
        unit="ops",
    ),
    Panel(
        "Steps in flight",
        "Scheduled steps whose tokens have not been processed; at most the pipeline's depth plus one.",
        (Query(f"max by (pod) (structuredllm_engine_in_flight_steps{{{NAMESPACE}}})", "{{pod}}"),),
    ),
    Panel(
        "Patches",
        "State of each patch in each engine, and the vLLM version it runs on.",
        (
            Query(
                f"max by (namespace, pod, id, vllm, state) (structuredllm_engine_patch_info{{{NAMESPACE}}})"
            ),
        ),
        kind="table",
        width=16,
    ),
)


def _engine_panel(metric: Metric) -> Panel:
    """Return the plain panel of an engine metric that has none of its own above."""
    words = metric.name.removeprefix("structuredllm_engine_").removesuffix("_seconds").replace("_", " ")
    title, by = words.capitalize(), ", ".join(("pod", *metric.labels))
    if isinstance(metric, Histogram):
        return Panel(title, metric.help, _quantiles(metric.name, NAMESPACE), unit="s")
    if isinstance(metric, Counter):
        return Panel(title, metric.help, (_rate(f"{metric.name}_total", NAMESPACE, by),), unit="ops")
    if isinstance(metric, Facts):
        query = Query(f"max by (namespace, {by}) ({metric.name}{{{NAMESPACE}}})")
        return Panel(title, metric.help, (query,), kind="table", width=16)
    legend = " ".join(f"{{{{{name}}}}}" for name in by.split(", "))
    return Panel(title, metric.help, (Query(f"max by ({by}) ({metric.name}{{{NAMESPACE}}})", legend),))


def _shown(panels: Sequence[Panel]) -> str:
    return " ".join(query.expr for panel in panels for query in panel.queries)


ALL_ENGINE_PANELS = (
    *ENGINE_PANELS,
    *(
        _engine_panel(metric)
        for metric in METRICS
        if f"{metric.name}{{" not in _shown(ENGINE_PANELS)
        and f"{metric.name}_total{{" not in _shown(ENGINE_PANELS)
    ),
)

OPERATOR_PANELS = (
    Panel(
        "Bursts by verdict",
        "Cold structured bursts that the operator sent to gated pods.",
        (
            Query(
                f"sum by (verdict, reason) (increase(structuredllm_operator_gate_bursts_total{RATE}))",
                "{{verdict}} {{reason}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Reconciles by result",
        "Passes of the reconcile loop.",
        (Query(f"sum by (result) (rate(structuredllm_operator_reconcile_total{RATE}))", "{{result}}"),),
        unit="ops",
    ),
    Panel(
        "Reconcile duration",
        "Time of one pass, without the burst.",
        (
            *(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) "
                    f"(rate(structuredllm_operator_reconcile_duration_seconds_bucket{RATE})))",
                    f"p{quantile * 100:.0f}",
                )
                for quantile in (0.5, 0.95, 0.99)
            ),
        ),
        unit="s",
    ),
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Are structured answers valid?", OVERVIEW),
    ("Gateway", GATEWAY_PANELS),
    ("Engines", ALL_ENGINE_PANELS),
    ("Operator", OPERATOR_PANELS),
)


def _render_panel(panel: Panel, ident: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": [{"color": c, "value": v} for v, c in panel.thresholds]},
    }
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "background",
            "graphMode": "area",
        }
    rendered: dict[str, Any] = {
        "id": ident,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": panel.kind == "table",
                "range": panel.kind != "table",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True}
        rendered["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return rendered


def _layout() -> Iterator[dict[str, Any]]:
    ident, y = 1, 0
    for title, panels in ROWS:
        yield {
            "id": ident,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1},
        }
        ident, y, x, line = ident + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > GRID_WIDTH:
                y, x, line = y + line, 0, 0
            yield _render_panel(panel, ident, x, y)
            ident, x, line = ident + 1, x + panel.width, max(line, panel.height)
        y += line


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def overview() -> dict[str, Any]:
    """Return the dashboard `structuredllm-overview`; same input, same output."""
    return {
        "uid": "structuredllm-overview",
        "title": "StructuredLLM / Overview",
        "description": "Are structured answers valid, who breaks them, and what do gate and patches say?",
        "tags": ["structuredllm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                _variable(
                    "namespace", "Namespace", 'label_values({__name__=~"structuredllm_.+"}, namespace)'
                ),
                _variable(
                    "model", "Model", f"label_values(structuredllm_gateway_endpoints{{{NAMESPACE}}}, model)"
                ),
            ]
        },
        "annotations": {"list": []},
        "panels": list(_layout()),
    }


def outputs(chart: Path) -> dict[Path, str]:
    """Return every dashboard file below `chart` with its wanted text."""
    dashboards = (overview(),)
    folder = chart / "files" / "dashboards"
    return {folder / f"{d['uid']}.json": json.dumps(d, indent=2) + "\n" for d in dashboards}


def main(argv: list[str] | None = None) -> int:
    """Write the dashboards, or with `--check` return 1 and name those out of date."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.gen_dashboards [--check]", file=sys.stderr)
        return 2
    stale = 0
    for path, text in outputs(repo_root() / "charts" / "structuredllm").items():
        if path.exists() and path.read_text() == text:
            continue
        if arguments:
            print(f"{path}: out of date; run python -m tools.gen_dashboards", file=sys.stderr)
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
