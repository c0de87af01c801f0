"""Builds and fetches, before any test runs, what the test stages need: programs, environments, images.

On a machine that never did it this takes tens of minutes, which is no business of a test's time limit. What
is there already costs nothing; an interrupted run is continued by the next one.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from structuredllm_engine_patches.versions import SUPPORTED
from tools.cluster.binaries import ensure_tool
from tools.cluster.cluster import prepare_programs
from tools.cluster.errors import ClusterError
from tools.cluster.settings import Places
from tools.demo.clusters import choose_cluster
from tools.demo.console import DemoError
from tools.demo.stage import IMAGES
from tools.engine_env import EngineEnvError, ensure_engine_env
from tools.images import ImageError, ensure_image
from tools.models.store import ModelError, ensure_model
from tools.paths import cache_dir

API_SERVER_TOOLS = ("kubectl", "kube-apiserver", "kube-controller-manager")
CHART_TOOLS = ("helm", "helm-unittest")
MODELS = ("toy", "toy-hybrid")


def _tools(*names: str) -> None:
    for name in names:
        ensure_tool(name)


def _engine() -> None:
    for version in SUPPORTED:
        ensure_engine_env(version)
    for name in MODELS:
        ensure_model(name)


def _end_to_end() -> None:
    if choose_cluster().name == "embedded":
        prepare_programs(Places(cache_dir("cluster")), lws=True)
    _tools("kubectl", "helm")
    for image in IMAGES:
        ensure_image(image)


NEEDS: dict[str, Callable[[], None]] = {
    "check": lambda: None,
    "unit": lambda: None,
    "chart": lambda: _tools(*CHART_TOOLS, *API_SERVER_TOOLS),
    "contract": lambda: _tools(*API_SERVER_TOOLS),
    "engine": _engine,
    "e2e": _end_to_end,
}
"""What makes ready for each stage of `tools.testrun`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the stages named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.prepare", description=__doc__)
    parser.add_argument("stages", nargs="+", choices=sorted(NEEDS))
    try:
        for name in parser.parse_args(argv).stages:
            NEEDS[name]()
    except (ClusterError, DemoError, EngineEnvError, ImageError, ModelError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare: interrupted; run again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
