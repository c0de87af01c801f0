"""Tags follow exactly the inputs of their image."""

from pathlib import Path

import pytest

from tools.images.recipes import (
    IMAGE_NAMES,
    RECIPES,
    ImageName,
    debian_base_reference,
    engine_base_reference,
    image_reference,
)
from tools.paths import repo_root

BASE = "localhost/structuredllm/debian-base:dev-000000000000"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with one small file in each place that any image is made of."""
    for recipe in RECIPES.values():
        for entry in recipe.inputs:
            path = tmp_path / entry
            if Path(entry).suffix or Path(entry).name in {"Dockerfile", ".dockerignore"}:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(entry)
            else:
                path.mkdir(parents=True, exist_ok=True)
                (path / "file.py").write_text(entry)
    return tmp_path


def references(tree: Path) -> dict[ImageName, str]:
    """Return the names of all images of the tree."""
    return {name: image_reference(name, tree, BASE) for name in IMAGE_NAMES}


@pytest.mark.parametrize(
    ("changed", "images"),
    [
        ("operator/src/file.py", {"operator"}),
        ("gateway/src/file.py", {"gateway"}),
        ("probe/src/file.py", {"operator", "gateway"}),
        ("engine-patches/src/file.py", {"engine-cpu"}),
        ("tests/cpu_engine/file.py", {"engine-cpu"}),
        ("tools/models/file.py", {"engine-cpu"}),
        ("Dockerfile", set(IMAGE_NAMES)),
        ("engine-patches/pyproject.toml", set(IMAGE_NAMES)),
        (".dockerignore", {"operator", "gateway"}),
        ("uv.lock", {"operator", "gateway"}),
        ("charts/values.yaml", set()),
    ],
)
def test_a_change_moves_the_tags_of_the_images_it_is_in(tree: Path, changed: str, images: set[str]) -> None:
    before = references(tree)
    (tree / changed).parent.mkdir(parents=True, exist_ok=True)
    (tree / changed).write_text("changed")
    after = references(tree)
    assert {name for name in IMAGE_NAMES if before[name] != after[name]} == images


def test_another_base_moves_every_tag(tree: Path) -> None:
    for name in IMAGE_NAMES:
        assert image_reference(name, tree, BASE) != image_reference(name, tree, "other")


def test_a_patch_change_leaves_the_engine_base_alone(tree: Path) -> None:
    before = engine_base_reference(tree, BASE)
    (tree / "engine-patches" / "src" / "file.py").write_text("changed")
    assert engine_base_reference(tree, BASE) == before
    (tree / "tests" / "cpu_engine" / "file.py").write_text("changed")
    assert engine_base_reference(tree, BASE) != before


def test_names_are_what_the_cluster_and_the_chart_expect(tree: Path) -> None:
    for name, reference in references(tree).items():
        assert reference.startswith(f"localhost/structuredllm/{name}:dev-")
    assert debian_base_reference() == debian_base_reference()


def test_every_input_but_byte_code_that_the_dockerfile_copies_is_hashed() -> None:
    """A COPY of something that no recipe hashes would leave a stale image under a current name."""
    hashed = {entry for recipe in RECIPES.values() for entry in recipe.inputs}
    for dockerfile in ("Dockerfile", "tests/cpu_engine/Dockerfile.base"):
        for line in (repo_root() / dockerfile).read_text().splitlines():
            words = line.split()
            if not words or words[0] != "COPY" or words[1].startswith("--from"):
                continue
            for source in words[1:-1]:
                assert any(source == entry or source.startswith(f"{entry}/") for entry in hashed), source


def test_every_input_exists() -> None:
    """A moved folder must not silently drop out of the hash."""
    for recipe in RECIPES.values():
        missing = [entry for entry in recipe.inputs if not (repo_root() / entry).exists()]
        assert not missing


def test_the_docker_context_holds_every_input() -> None:
    """Every copied input is let in by .dockerignore (last matching line wins; `!` lets in)."""
    allowed = [
        line[1:] for line in (repo_root() / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    outside = {".dockerignore", "Dockerfile", "tools/models"}
    for recipe in RECIPES.values():
        for entry in set(recipe.inputs) - outside:
            assert entry in allowed, entry
