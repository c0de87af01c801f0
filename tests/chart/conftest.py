"""Fixtures: the tools, and `render` which templates the chart with given arguments."""

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.chart.support import CHART, KUBE_VERSION, Render, documents, ensure_helm, ensure_promtool, run


@pytest.fixture(scope="session")
def helm() -> Path:
    return ensure_helm("helm")


@pytest.fixture(scope="session")
def helm_unittest() -> Path:
    return ensure_helm("helm-unittest")


@pytest.fixture(scope="session")
def promtool() -> Path:
    return ensure_promtool()


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """Return a function from `helm template` arguments to manifests; each set is rendered once."""

    @functools.cache
    def template(*arguments: str | Path) -> list[dict[str, Any]]:
        done = run(
            helm,
            *("template", "structuredllm", CHART, "--namespace", "sys", "--kube-version", KUBE_VERSION),
            *arguments,
        )
        assert done.returncode == 0, done.stderr
        return documents(done.stdout)

    return template
