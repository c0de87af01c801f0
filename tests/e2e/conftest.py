"""One stage for all end-to-end tests: the demo's cluster, images and chart, in a namespace of their own.

Ends what it started: the namespace always, the cluster when it was not up before. Logs: build/e2e/.
"""

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.demo.console import Console
from tools.demo.parts import Bench
from tools.demo.resources import SYSTEM_NAMESPACE
from tools.demo.stage import GATEWAY_SERVICE, Stage, prepare
from tools.paths import repo_root

NAMESPACE = "structuredllm-e2e"
BUILD = repo_root() / "build" / "e2e"


def cluster_is_up() -> bool:
    """Return whether the embedded cluster runs already (then it is not ours to stop)."""
    return (
        subprocess.run(
            (sys.executable, "-m", "tools.cluster", "status"), check=False, capture_output=True
        ).returncode
        == 0
    )


def save_logs(stage: Stage, folder: Path) -> None:
    """Keep what a person would ask for after a failure."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in {
        "resources.yaml": ("get", "sllm", "-A", "-o", "yaml"),
        "pods.txt": ("get", "pods", "-A", "-o", "wide"),
        "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        "operator.log": (
            "logs", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/component=operator", "--tail=-1",
        ),
        "gateway.log": (
            "logs", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/component=gateway", "--tail=-1",
        ),
        "engines.log": (
            "logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=engine", "--tail=2000",
        ),
    }.items():  # fmt: skip
        (folder / name).write_text(stage.kubectl.run(*arguments, check=False))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The cluster with the chart installed."""
    shutil.rmtree(BUILD, ignore_errors=True)
    was_up = cluster_is_up()
    console = Console(BUILD / "e2e.log", 4)
    prepared = None
    try:
        prepared = prepare(console, namespace=NAMESPACE)
        yield prepared
    finally:
        if prepared is not None:
            save_logs(prepared, BUILD)
            prepared.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", timeout=300, check=False)
        if not was_up and prepared is not None and prepared.cluster.name == "embedded":
            prepared.cluster.down()


@pytest.fixture(scope="session")
def bench(stage: Stage) -> Bench:
    """What the demo's parts take."""
    console = Console(BUILD / "parts.log", 1)
    return Bench(stage.kubectl, console, NAMESPACE, stage.engine_image, BUILD, secrets.token_hex(4))


@pytest.fixture(scope="session")
def gateway(stage: Stage) -> Iterator[str]:
    """The gateway's base URL, forwarded to this machine."""
    with stage.kubectl.port_forward(
        SYSTEM_NAMESPACE, f"svc/{GATEWAY_SERVICE}", 80, BUILD / "port-forward.log"
    ) as url:
        yield url
