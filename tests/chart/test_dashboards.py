"""The dashboards: up to date, well formed, and about metrics that exist."""

import json
import re
from typing import Any

import pytest

from tests.chart.metrics import exported, used
from tests.chart.support import CHART, DASHBOARDS, all_alerts
from tools import gen_dashboards

FILES = sorted(DASHBOARDS.glob("*.json"))


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_committed_json_is_what_the_generator_writes() -> None:
    assert FILES
    for path, text in gen_dashboards.outputs(CHART).items():
        assert path.read_text() == text, "run python -m tools.gen_dashboards"


def test_check_mode_names_a_stale_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_dashboards, "outputs", lambda chart: {chart / "Chart.yaml": "other"})
    assert gen_dashboards.main(["--check"]) == 1
    assert "Chart.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_fit_the_grid_and_use_the_variables(path: Any) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "namespace", "model"}
    taken: set[tuple[int, int]] = set()
    idents = [panel["id"] for panel in dashboard["panels"]]
    assert len(idents) == len(set(idents))
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not taken & cells, f"{panel['title']} overlaps"
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
    for query in queries(dashboard):
        for window in re.findall(r"\[([^\]]+)\]", query):
            assert window in ("$__rate_interval", "$__range"), query
        assert query.count("(") == query.count(")"), query


def _expressions() -> str:
    dashboards = [query for path in FILES for query in queries(json.loads(path.read_text()))]
    variables = [
        variable["definition"]
        for path in FILES
        for variable in json.loads(path.read_text())["templating"]["list"]
        if "definition" in variable
    ]
    return "\n".join([*dashboards, *variables])


def test_every_metric_in_rules_and_dashboards_is_exported_by_code() -> None:
    text = _expressions() + "\n".join(alert["expr"] for alert in all_alerts().values())
    series = frozenset[str]().union(*exported().values())
    missing = used(text) - series
    assert not missing, f"no package exports {sorted(missing)}"


def test_every_metric_of_the_code_is_on_a_dashboard() -> None:
    shown = used(_expressions())
    unseen = [name for name, series in exported().items() if not series & shown]
    assert not unseen
