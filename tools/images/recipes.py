"""What each image is made of: Dockerfile, target, inputs, base; and its content-addressed name.

Pure but for reading the files it hashes. Knows nothing of how a builder is called (`commands`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.images.inputs import content_hash

ImageName = Literal["operator", "gateway", "engine-cpu"]
IMAGE_NAMES: tuple[ImageName, ...] = ("operator", "gateway", "engine-cpu")

REGISTRY = "localhost/structuredllm"
DEBIAN_SUITE = "bookworm"
DEBIAN_PACKAGES = ("python3", "python3-venv", "ca-certificates")
PUBLIC_PYTHON_IMAGE = "docker.io/library/python:3.12-slim-bookworm"
# Raise it when this package makes other images from the same files.
RECIPE_VERSION = "1"

_WORKSPACE_FILES = (
    "Dockerfile",
    ".dockerignore",
    "pyproject.toml",
    "uv.lock",
    *(
        f"{member}/{file}"
        for member in ("operator", "gateway", "probe", "engine-patches")
        for file in ("pyproject.toml", "README.md")
    ),
)
_PATCH_FILES = ("engine-patches/pyproject.toml", "engine-patches/README.md", "engine-patches/src")
_ENGINE_BASE_FILES = ("tests/cpu_engine", "tools/models")


@dataclass(frozen=True)
class Recipe:
    """How one image is built.

    `target` is a stage of `dockerfile`; `inputs` are files and folders, relative to the repository's root,
    whose bytes decide the tag; `on_engine_base` says that the CPU engine's base goes below it.
    """

    name: ImageName
    target: str
    inputs: tuple[str, ...]
    dockerfile: str = "Dockerfile"
    on_engine_base: bool = False


RECIPES: dict[ImageName, Recipe] = {
    "operator": Recipe("operator", "operator", (*_WORKSPACE_FILES, "operator/src", "probe/src")),
    "gateway": Recipe("gateway", "gateway", (*_WORKSPACE_FILES, "gateway/src", "probe/src")),
    "engine-cpu": Recipe(
        "engine-cpu",
        "engine",
        # Of the workspace only what the wheel is made of: lock and other members do not change it, and
        # gigabytes are not written again because the gateway got a new dependency.
        ("Dockerfile", *_PATCH_FILES, *_ENGINE_BASE_FILES),
        on_engine_base=True,
    ),
}


def debian_base_reference() -> str:
    """Return the name of the Debian base image, after what is asked of mmdebstrap.

    The same name can hold newer packages on another day: it follows the recipe, not the archive's state.
    """
    facts = (RECIPE_VERSION, DEBIAN_SUITE, *DEBIAN_PACKAGES)
    tag = content_hash(Path(__file__).parent, ("Dockerfile.debian", "debian.py"), facts)
    return f"{REGISTRY}/debian-base:dev-{tag}"


def engine_base_reference(root: Path, python_image: str) -> str:
    """Return the name of the CPU engine's base image (vLLM, plumbing, models; no patches)."""
    tag = content_hash(root, _ENGINE_BASE_FILES, (RECIPE_VERSION, python_image))
    return f"{REGISTRY}/engine-cpu-base:dev-{tag}"


def image_reference(name: ImageName, root: Path, python_image: str) -> str:
    """Return `localhost/structuredllm/NAME:dev-HASH`; the hash covers every input and the base image."""
    tag = content_hash(root, RECIPES[name].inputs, (RECIPE_VERSION, python_image))
    return f"{REGISTRY}/{name}:dev-{tag}"
