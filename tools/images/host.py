"""What this host can do: which builder runs, which file system the cache is on, what must be installed.

Owns looking at the host and apt-get. Decisions that need no host are in `commands`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.images.commands import CERTIFICATE_FILE, BuilderKind, HostHelp, choose_builder
from tools.images.errors import ImageError, ToolMissingError
from tools.images.runner import Runner

BUILDER_VARIABLE = "IMAGE_BUILDER"
_ASK_TIMEOUT_SECONDS = 20


def detect_builder() -> BuilderKind:
    """Return the builder to use: `IMAGE_BUILDER`, a running docker or podman, else buildah.

    Raises:
        ImageError: `IMAGE_BUILDER` names no builder.
    """
    wish = os.environ.get(BUILDER_VARIABLE)
    running = [] if wish else [kind for kind in ("docker", "podman") if _answers([kind, "info"])]
    try:
        return choose_builder(wish, running)
    except ValueError as error:
        raise ImageError(str(error)) from error


def host_help() -> HostHelp:
    """Return what the host can lend to a build: its certificates, and uv's package cache."""
    # The workspace's own uv lies beside its Python and need not be on PATH.
    beside = str(Path(sys.executable).parent)
    uv = os.environ.get("UV") or shutil.which("uv") or shutil.which("uv", path=beside)
    cache: Path | None = None
    if uv:
        try:
            answer = subprocess.run(
                [uv, "cache", "dir"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            cache = None
        else:
            cache = Path(answer.stdout.strip())
            cache.mkdir(parents=True, exist_ok=True)
    return HostHelp(certificates=CERTIFICATE_FILE.is_file(), uv_cache=cache)


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds `path` (`ext4`, `overlay`, ...), or `unknown`."""
    best, kind = Path("/"), "unknown"
    real = path.resolve()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].encode().decode("unicode_escape"))
        if real.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, right.split()[0]
    return kind


def ensure_programs(packages: Iterable[str], runner: Runner) -> None:
    """Install the Debian packages (each with a program of its name) that are missing.

    Raises:
        ToolMissingError: something is missing, and this is no Debian or the caller is not root.
    """
    missing = sorted(name for name in packages if shutil.which(name) is None)
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise ToolMissingError(
            f"missing on this host: {names}; install them (Debian: apt-get install {names}) "
            f"or start docker or podman, then run again"
        )
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ("-o", "DPkg::Lock::Timeout=300")
    with runner.step(f"installing Debian packages {names}"):
        runner.run(["apt-get", "update", "-qq", *wait], env=env, timeout_seconds=300)
        runner.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wait, *missing],
            env=env,
            timeout_seconds=900,
        )


def _answers(argv: list[str]) -> bool:
    if shutil.which(argv[0]) is None:
        return False
    try:
        return (
            subprocess.run(argv, capture_output=True, timeout=_ASK_TIMEOUT_SECONDS, check=False).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False
