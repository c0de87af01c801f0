"""The Python environment with vLLM's own wheel and the patch package, and the model that it serves.

Owns `${cache}/engine-venv-gpu/<hash>`, built under a temporary name and renamed when it is complete.
"""

import shutil
import subprocess
from pathlib import Path

from tools.engine_env import PYTHON_VERSION, find_uv, pins_digest, python_of
from tools.models.store import ensure_model
from tools.paths import cache_dir, repo_root

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
INSTALL_TIMEOUT_SECONDS = 3600
NEEDED_DISK_BYTES = 25 * 10**9
DEFAULT_MODEL = "smollm2"
DOWNLOAD = "import sys; from huggingface_hub import snapshot_download as get; print(get(sys.argv[1]))"


class EvidenceError(RuntimeError):
    """Something that the evidence needs cannot be had; the message says what to do."""


def ensure_environment() -> Path:
    """Return the environment's folder, building it where needed; the patches are those of this working tree.

    Raises:
        EvidenceError: a command failed, or the disk is too full.
    """
    base = cache_dir("engine-venv-gpu")
    target = base / pins_digest(REQUIREMENTS.read_bytes())
    uv = find_uv()
    if not (target / ".complete").exists():
        free = shutil.disk_usage(base).free
        if free < NEEDED_DISK_BYTES:
            raise EvidenceError(
                f"{base} has {free / 1e9:.0f} GB free, vLLM with CUDA needs "
                f"{NEEDED_DISK_BYTES / 1e9:.0f} GB: free some, or set STRUCTUREDLLM_CACHE to a folder "
                "on another disk"
            )
        building = base / f".building-{target.name}"
        for leftover in (building, target):
            shutil.rmtree(leftover, ignore_errors=True)
        run([uv, "venv", "--quiet", "--relocatable", "--python", PYTHON_VERSION, str(building)])
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode"]
        run([*install, "--python", str(python_of(building)), "--requirements", str(REQUIREMENTS)])
        building.rename(target)
        (target / ".complete").touch()
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--reinstall"]
    run([*install, "--python", str(python_of(target)), str(repo_root() / "engine-patches")])
    return target


def find_model(name: str, environment: Path) -> Path:
    """Return the folder of a model.

    Args:
        name: `hf://ORGANISATION/NAME` (downloaded), a folder, or a model that the tools make.
        environment: has the download tool.

    Raises:
        EvidenceError: it cannot be had.
    """
    if name.startswith("hf://"):
        said = run([str(python_of(environment)), "-c", DOWNLOAD, name.removeprefix("hf://")])
        return Path(said.strip().splitlines()[-1])
    if name == DEFAULT_MODEL:
        return ensure_model(name)
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise EvidenceError(
            f"{name!r} is no model: give a folder with a config.json, hf://ORGANISATION/NAME, or "
            f"{DEFAULT_MODEL}"
        )
    return folder.resolve()


def run(command: list[str]) -> str:
    """Run a command and return what it printed.

    Raises:
        EvidenceError: it failed or took too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise EvidenceError(f"`{' '.join(command[:4])}` took over {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise EvidenceError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")
    return done.stdout
