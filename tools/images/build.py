"""Builds what is missing: bases, image, archive. The only module here that puts the others together.

Order of a build: lock, base image, models, image, archive under a temporary name, rename, prune. Whatever was
interrupted leaves nothing that the next build takes for finished.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.images import store
from tools.images.commands import (
    Buildah,
    BuilderKind,
    BuildRequest,
    build_arguments,
    export_arguments,
    pick_driver,
)
from tools.images.debian import mmdebstrap_arguments
from tools.images.errors import ImageError
from tools.images.host import detect_builder, ensure_programs, file_system_of, host_help
from tools.images.recipes import (
    DEBIAN_PACKAGES,
    DEBIAN_SUITE,
    PUBLIC_PYTHON_IMAGE,
    RECIPES,
    ImageName,
    debian_base_reference,
    engine_base_reference,
    image_reference,
)
from tools.images.runner import Runner
from tools.paths import cache_dir, repo_root

_MODELS = {"toy": "toy", "smollm2": "smollm2-135m-instruct"}
# Nameless layers are the build cache; past this number the cache is dropped as a whole.
_MAX_NAMELESS_IMAGES = 120


@dataclass(frozen=True)
class BuiltImage:
    """A finished image: its name, the archive that holds it, and its digest there (`sha256:...`)."""

    reference: str
    archive: Path
    digest: str


def say(text: str) -> None:
    """Print one line at once, to stderr, so that stdout stays free for answers."""
    print(text, file=sys.stderr, flush=True)


class ImageBuilder:
    """Builds images of one working tree with one builder into one cache folder."""

    def __init__(self, root: Path, folder: Path, kind: BuilderKind, say: Callable[[str], None] = say) -> None:
        """Remember the tree `root`, the cache `folder` and the builder; starts nothing."""
        self._root = root
        self._folder = folder
        self._kind = kind
        self._say = say

    def reference(self, name: ImageName) -> str:
        """Return the name that the image has for the tree as it is now."""
        return image_reference(name, self._root, self._python_image)

    def ensure(self, name: ImageName) -> BuiltImage:
        """Return the image, building it when its archive is not in the cache.

        Raises:
            ImageError: a program is missing or a step failed; the text names the log.
        """
        reference = self.reference(name)
        archive = store.archive_path(self._folder, reference)
        if not archive.is_file():
            with store.build_lock(self._folder / "lock", lambda text: self._say(f"images: {text}")):
                # Another process may have built it while this one waited.
                if not archive.is_file():
                    self._build(name, reference, archive)
        store.mark_used(archive)
        return BuiltImage(reference, archive, store.archive_digest(archive))

    @property
    def _python_image(self) -> str:
        return debian_base_reference() if self._kind == "buildah" else PUBLIC_PYTHON_IMAGE

    @cached_property
    def _buildah(self) -> Buildah:
        driver = os.environ.get("STORAGE_DRIVER") or pick_driver(file_system_of(self._folder))
        # The run root must not outlive a reboot (it holds mount counts), so it is not in the cache.
        place = hashlib.sha256(str(self._folder.resolve()).encode()).hexdigest()[:12]
        base = Path("/run") if os.geteuid() == 0 else Path(tempfile.gettempdir())
        return Buildah(self._folder / f"storage-{driver}", base / f"structuredllm-images-{place}", driver)

    def _command(self, *arguments: str) -> list[str]:
        return self._buildah.command(*arguments) if self._kind == "buildah" else [self._kind, *arguments]

    def _build(self, name: ImageName, reference: str, archive: Path) -> None:
        runner = Runner(self._root / "build" / "logs" / f"images-{name}.log", self._say)
        runner.log.unlink(missing_ok=True)
        recipe = RECIPES[name]
        self._prepare(runner)
        args = {"PYTHON_IMAGE": self._python_image}
        if recipe.on_engine_base:
            args["ENGINE_BASE"] = self._ensure_engine_base(runner)
        request = BuildRequest(
            self._root / recipe.dockerfile, self._root, reference, target=recipe.target, args=args
        )
        with runner.step(f"building {reference} with {self._kind}"):
            self._run_build(runner, request)
        with runner.step(f"writing {archive.name}"):
            self._export(runner, reference, archive)
        self._tidy(runner, name)

    def _prepare(self, runner: Runner) -> None:
        if self._kind != "buildah":
            return
        ensure_programs(("buildah", "mmdebstrap"), runner)
        # Containers of an interrupted build; the lock is held, so nobody uses them.
        runner.run(self._command("rm", "--all"))
        if not self._exists(debian_base_reference()):
            self._make_debian_base(runner)

    def _make_debian_base(self, runner: Runner) -> None:
        reference = debian_base_reference()
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="base-") as name:
            context = Path(name)
            with runner.step(f"making a Debian {DEBIAN_SUITE} base with mmdebstrap"):
                runner.run(mmdebstrap_arguments(DEBIAN_SUITE, DEBIAN_PACKAGES, context / "base.tar"))
            with runner.step(f"importing {reference}"):
                self._run_build(
                    runner, BuildRequest(Path(__file__).parent / "Dockerfile.debian", context, reference)
                )

    def _ensure_engine_base(self, runner: Runner) -> str:
        reference = engine_base_reference(self._root, self._python_image)
        if self._exists(reference):
            return reference
        for model in _MODELS:
            with runner.step(f"model {model}"):
                runner.run([sys.executable, "-m", "tools.models", model], cwd=self._root)
        request = BuildRequest(
            self._root / "tests" / "cpu_engine" / "Dockerfile.base",
            self._root,
            reference,
            target="engine-base",
            args={"PYTHON_IMAGE": self._python_image},
            contexts={"models": cache_dir("models")},
        )
        with runner.step(f"building {reference} (vLLM for CPU; minutes when new)"):
            self._run_build(runner, request)
        return reference

    def _run_build(self, runner: Runner, request: BuildRequest) -> None:
        runner.run(self._command(*build_arguments(self._kind, request, host_help())), env=self._environment())

    def _export(self, runner: Runner, reference: str, archive: Path) -> None:
        half = archive.with_suffix(".half")
        half.unlink(missing_ok=True)
        try:
            runner.run(self._command(*export_arguments(self._kind, reference, half)), env=self._environment())
            half.replace(archive)
        finally:
            half.unlink(missing_ok=True)

    def _environment(self) -> dict[str, str]:
        # Large intermediate files go beside the archives: /var/tmp may be small.
        scratch = self._folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        return {"TMPDIR": str(scratch)}

    def _exists(self, reference: str) -> bool:
        command = ("inspect", "--type", "image", reference) if self._kind == "buildah" else (
            "image", "inspect", reference)  # fmt: skip
        return subprocess.run(self._command(*command), capture_output=True, check=False).returncode == 0

    def _tidy(self, runner: Runner, name: ImageName) -> None:
        for stale in store.prune(self._folder, name):
            runner.say(f"images: deleted old {stale.name}")
        if self._kind == "buildah":
            try:
                self._drop_old_layers(runner)
            except ImageError as error:
                # The image is finished; space that could not be freed must not fail the build.
                runner.say(f"images: old layers were kept: {error}")

    def _drop_old_layers(self, runner: Runner) -> None:
        """Remove the images whose archive is gone, and the build cache when it has grown large."""
        listing = subprocess.run(
            self._command("images", "--all", "--format", "{{.Name}}:{{.Tag}}"),
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        for stale in store.stale_references(listing, self._folder, RECIPES):
            runner.run(self._command("rmi", stale))
        if sum("<none>" in line for line in listing) > _MAX_NAMELESS_IMAGES:
            runner.run(self._command("rmi", "--prune", "--force"))


def default_builder(say: Callable[[str], None] = say) -> ImageBuilder:
    """Return the builder for this working tree, the user's cache and the builder that this host has."""
    return ImageBuilder(repo_root(), cache_dir("images"), detect_builder(), say)


def ensure_image(name: ImageName) -> BuiltImage:
    """Return the image for the working tree as it is now, building it first when it is not in the cache.

    Raises:
        ImageError: unknown name, missing program, failed step.
    """
    _check_name(name)
    return default_builder().ensure(name)


def reference_of(name: ImageName) -> str:
    """Return the image's name for the working tree as it is now; builds nothing.

    Raises:
        ImageError: unknown name.
    """
    _check_name(name)
    return default_builder().reference(name)


def _check_name(name: str) -> None:
    if name not in RECIPES:
        raise ImageError(f"no image is called {name!r}: expected one of {', '.join(RECIPES)}")
