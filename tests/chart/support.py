"""Runs the chart's external tools for the tests: helm, helm-unittest, promtool.

Owns where each tool comes from. No test logic here.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.paths import cache_dir, repo_root

CHART = repo_root() / "charts" / "structuredllm"
RULES = CHART / "files" / "rules"
DASHBOARDS = CHART / "files" / "dashboards"
RUNBOOKS = repo_root() / "docs" / "runbooks"
RUN_SECONDS = 120.0
# The version that the templates see; helm without a cluster would guess an old one.
KUBE_VERSION = "1.31.0"

Render = Callable[..., list[dict[str, Any]]]
"""From `helm template` arguments to manifests; the fixture `render` is one."""


class ToolMissingError(RuntimeError):
    """A tool is not on this machine and could not be fetched; the message says how to get it."""


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, output captured, exit code left to the caller."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd or repo_root(),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )


def ensure_promtool() -> Path:
    """Return promtool: from PATH, or unpacked from Debian's package `prometheus` into the user's cache.

    Unpacked and not installed, so that no root is needed and no Prometheus starts on the machine.

    Raises:
        ToolMissingError: neither way works.
    """
    if found := shutil.which("promtool"):
        return Path(found)
    cached = cache_dir("bin") / "promtool"
    if cached.exists():
        return cached
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        folder = Path(scratch)
        # apt reads as its own user where it runs as root, and that user must be able to write here.
        folder.chmod(0o777)
        if not _download_deb(folder):
            raise ToolMissingError(
                "promtool is missing: install it (Debian, Ubuntu: apt-get install prometheus)"
            )
        deb = next(folder.glob("prometheus_*.deb"))
        unpacked = run("dpkg-deb", "-x", deb, folder / "root")
        if unpacked.returncode != 0:
            raise ToolMissingError(f"cannot unpack {deb.name}: {unpacked.stderr.strip()}")
        partial = cached.with_suffix(f".{os.getpid()}")
        shutil.copy2(folder / "root" / "usr" / "bin" / "promtool", partial)
        partial.replace(cached)
    return cached


def _download_deb(folder: Path) -> bool:
    """Download the package into `folder`; refresh the package lists first when apt does not know it."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    for attempt in ("known", "refreshed"):
        if attempt == "refreshed":
            run("apt-get", "update", "-qq")
        if run("apt-get", "download", "-qq", "prometheus", cwd=folder).returncode == 0:
            return True
    return False


def ensure_helm(name: str) -> Path:
    """Return `helm` or `helm-unittest` as pinned by this repository.

    The environment variable HELM or HELM_UNITTEST names another binary.
    """
    override = os.environ.get(name.upper().replace("-", "_"))
    if override:
        return Path(override)
    from tools.cluster.binaries import ensure_tool

    return Path(ensure_tool(name))


def documents(text: str) -> list[dict[str, Any]]:
    """Return the YAML documents of `helm template`, empty ones left out."""
    return [document for document in yaml.safe_load_all(text) if document]


def rule_files() -> list[Path]:
    """Return the plain rule files of the chart, sorted."""
    return sorted(RULES.glob("*.yaml"))


def alerts(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every alerting rule of a plain rule file."""
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from (rule for rule in group["rules"] if "alert" in rule)


def all_alerts() -> dict[str, dict[str, Any]]:
    """Return every alert of the chart by name."""
    return {rule["alert"]: rule for path in rule_files() for rule in alerts(path)}


def pod_specs(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pod specs of all workloads by `Kind/name`."""
    return {
        f"{m['kind']}/{m['metadata']['name']}": m["spec"]["template"]["spec"]
        for m in manifests
        if m["kind"] in ("Deployment", "Job")
    }
