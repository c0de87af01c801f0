"""The alert rules: valid, unit-tested by promtool, and complete in what they tell."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.support import CHART, all_alerts, rule_files, run

TESTS = Path(__file__).parent / "rules"
ALERTS = all_alerts()


def _cases() -> list[dict[str, Any]]:
    return [
        case
        for path in sorted(TESTS.glob("*_test.yaml"))
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]


def test_promtool_accepts_the_rules(promtool: Path) -> None:
    done = run(promtool, "check", "rules", *rule_files())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("suite", sorted(TESTS.glob("*_test.yaml")), ids=lambda path: path.stem)
def test_promtool_unit_tests_pass(promtool: Path, suite: Path) -> None:
    done = run(promtool, "test", "rules", suite.name, cwd=TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_tested_firing_and_silent(name: str) -> None:
    cases = [case for case in _cases() if case["alertname"] == name]
    assert any(case["exp_alerts"] for case in cases), "no case in which it fires"
    assert any(not case["exp_alerts"] for case in cases), "no case in which it stays silent"
    last_firing = max(i for i, case in enumerate(cases) if case["exp_alerts"])
    assert any(not case["exp_alerts"] for case in cases[: last_firing + 2]), "no case in which it resolves"


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_says_what_where_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert name.startswith("StructuredLLM")
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    annotations = alert["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"].endswith(f"/{name}.md")
    if "absent(" not in alert["expr"]:
        assert "$value" in annotations["description"]
        assert "$labels" in annotations["summary"]


def test_values_hold_the_same_numbers_as_the_plain_rules() -> None:
    """The plain files are the defaults; values.yaml repeats them for tuning."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]["alerts"]
    assert values.keys() == ALERTS.keys()
    for name, alert in ALERTS.items():
        setting = values[name]
        assert setting["enabled"] is True
        assert setting["for"] == alert["for"]
        assert setting["severity"] == alert["labels"]["severity"]
        found = re.search(r"> ([0-9.]+)\s*$", alert["expr"])
        assert (found is None) == ("threshold" not in setting), name
        if found:
            assert float(found.group(1)) == setting["threshold"]
