"""Build, once per machine, the Python environments in which the real vLLM runs on the CPU.

Owns `${cache}/engine-venv/<hash>`, one for each supported version: the pinned CPU build of vLLM plus the
patch package and the test plumbing of this working tree. It must import nothing of the product. An
environment is built under a temporary name and renamed when it is complete, so an interrupted run leaves
nothing that a later one would trust.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.paths import cache_dir, repo_root

REQUIREMENTS = {"0.32.0": "requirements.txt", "0.22.1": "requirements-0.22.1.txt"}
"""The pins of each version of vLLM, below tests/cpu_engine."""

VLLM_VERSION = "0.32.0"
"""The version that everything runs which does not ask for another one."""

PYTHON_VERSION = "3.11"
LAYOUT = "2"
"""Raise it when the way of building changes without a change of the pins."""

TEST_REQUIREMENTS = "tests/cpu_engine/requirements-test.txt"
LOCAL_PROJECTS = ("engine-patches", "tests/cpu_engine")
KEPT_OLD_ENVIRONMENTS = 1
INSTALL_TIMEOUT_SECONDS = 1800
NEEDED_DISK_BYTES = 8 * 10**9
"""An environment takes up to 6 GB, with the package cache on another file system twice that."""


class EngineEnvError(RuntimeError):
    """The environment could not be built; the message says which command failed and what to try."""


def requirements_file(version: str = VLLM_VERSION) -> Path:
    """Return the committed pins of the environment with a version of vLLM.

    Raises:
        EngineEnvError: there are none.
    """
    if version not in REQUIREMENTS:
        raise EngineEnvError(f"no pins for vLLM {version}: there are those of {', '.join(REQUIREMENTS)}")
    return repo_root() / "tests" / "cpu_engine" / REQUIREMENTS[version]


def pins_digest(requirements: bytes) -> str:
    """Return the name of the environment that these pins describe (12 hex digits)."""
    material = b"\n".join((requirements, PYTHON_VERSION.encode(), LAYOUT.encode()))
    return hashlib.sha256(material).hexdigest()[:12]


def sources_digest(root: Path, projects: Sequence[str] = LOCAL_PROJECTS) -> str:
    """Return a digest of the local projects' packaged files, so that a change leads to a reinstall."""
    digest = hashlib.sha256()
    for project in projects:
        folder = root / project
        files = [folder / "pyproject.toml", *sorted((folder / "src").rglob("*"))]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def find_uv() -> str:
    """Return the uv program: `UV`, then PATH, then the workspace's own environment."""
    candidates = (os.environ.get("UV"), shutil.which("uv"), str(repo_root() / ".venv" / "bin" / "uv"))
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            return candidate
    raise EngineEnvError("uv was not found: put it on PATH or set UV=/path/to/uv")


def ensure_engine_env(version: str = VLLM_VERSION) -> Path:
    """Return the folder of the environment with a version of vLLM, building or refreshing it where needed.

    Raises:
        EngineEnvError: a command failed or the disk is too full; nothing half-made is left under the final
            name.
    """
    requirements = requirements_file(version)
    base = cache_dir("engine-venv")
    target = base / pins_digest(requirements.read_bytes())
    with _locked(base / ".lock"):
        if not (target / ".complete").exists():
            _build(base, target, version, requirements)
        _install_test_tools(target)
        _install_local(target)
        (target / ".complete").touch()
        _drop_old(base)
    return target


def python_of(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    return environment / "bin" / "python"


def _build(base: Path, target: Path, version: str, requirements: Path) -> None:
    started = time.monotonic()
    free = shutil.disk_usage(base).free
    if free < NEEDED_DISK_BYTES:
        raise EngineEnvError(
            f"{base} has {free / 1e9:.1f} GB free, an environment needs {NEEDED_DISK_BYTES / 1e9:.0f} GB: "
            "free some, or set STRUCTUREDLLM_CACHE to a folder on another disk"
        )
    building = base / f".building-{target.name}"
    for leftover in (building, target):
        if leftover.exists():
            shutil.rmtree(leftover)
    _say(f"building the CPU engine environment (vLLM {version}, about 6 GB, once per machine)")
    uv = find_uv()
    _run([uv, "venv", "--quiet", "--relocatable", "--python", PYTHON_VERSION, str(building)])
    # Compiled here, once: with PYTHONDONTWRITEBYTECODE or read-only files each process of an engine would
    # compile 45 s worth of modules at every start.
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode"]
    _run([*install, "--python", str(python_of(building)), "--requirements", str(requirements)])
    _write_vllm_metadata(building, version)
    # Marked only after the last step: a copy of a half-made folder must never look complete.
    building.rename(target)
    (target / ".complete").touch()
    _say(f"environment built in {time.monotonic() - started:.0f} s: {target}")


def _write_vllm_metadata(environment: Path, version: str) -> None:
    """Give the CPU build a distribution named `vllm`.

    The `vllm` command asks for that name, and the `+cpu` in the version is how vLLM knows its platform.
    """
    site = environment / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _install_local(target: Path) -> None:
    root = repo_root()
    digest = sources_digest(root)
    marker = target / ".local-sources"
    if marker.exists() and marker.read_text() == digest:
        return
    _say("installing the patch package and the test plumbing of this working tree")
    marker.unlink(missing_ok=True)
    install = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--reinstall"]
    projects = [str(root / project) for project in LOCAL_PROJECTS]
    _run([*install, "--python", str(python_of(target)), *projects])
    marker.write_text(digest)


def _install_test_tools(target: Path) -> None:
    requirements = repo_root() / TEST_REQUIREMENTS
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    marker = target / ".test-tools"
    if marker.exists() and marker.read_text() == digest:
        return
    install = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--python", str(python_of(target))]
    _run([*install, "--requirements", str(requirements)])
    marker.write_text(digest)


def _drop_old(base: Path) -> None:
    """Keep the disk bounded: those of the committed pins and the most recently used other one stay."""
    current = {pins_digest(requirements_file(version).read_bytes()) for version in REQUIREMENTS}
    others = [p for p in base.iterdir() if p.is_dir() and p.name not in current and p.name[0] != "."]
    others.sort(key=lambda p: (p / ".complete").stat().st_mtime if (p / ".complete").exists() else 0.0)
    for path in others[: max(0, len(others) - KEPT_OLD_ENVIRONMENTS)]:
        _say(f"removing the old environment {path.name}")
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another build of the engine environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineEnvError(f"{' '.join(command[:3])} took over {INSTALL_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise EngineEnvError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")


def _say(text: str) -> None:
    print(f"engine-env: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the environment's path on stdout, or run its Python; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.engine_env", description=__doc__)
    parser.add_argument("--vllm", choices=REQUIREMENTS, default=VLLM_VERSION, help="version of vLLM")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("path", help="build it where needed and print its folder")
    commands.add_parser("run", help="build it where needed and run its Python with the arguments that follow")
    given = list(sys.argv[1:] if argv is None else argv)
    # What follows `run` is Python's, options too.
    end = next((n for n, word in enumerate(given, 1) if word in commands.choices), len(given))
    options = parser.parse_args(given[:end])
    try:
        environment = ensure_engine_env(options.vllm)
    except EngineEnvError as error:
        print(f"engine-env: {error}", file=sys.stderr)
        return 1
    if options.command == "run":
        command = [str(python_of(environment)), *given[end:]]
        # Processes that the tests spawn import the tests' modules as well.
        variables = {**os.environ, "PYTHONPATH": str(repo_root())}
        return subprocess.run(command, cwd=repo_root(), env=variables, check=False).returncode
    print(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
