"""The chart's own helm-unittest suites, which sit beside the chart for those who work on it alone."""

from pathlib import Path

from tests.chart.support import CHART, run


def test_suites_pass(helm_unittest: Path) -> None:
    done = run(helm_unittest, CHART)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_template_folder_has_a_suite() -> None:
    folders = {path.name for path in (CHART / "templates").iterdir() if path.is_dir()}
    suites = {path.name.removesuffix("_test.yaml") for path in (CHART / "tests").glob("*_test.yaml")}
    assert folders <= suites
