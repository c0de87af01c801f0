"""Programs from pinned modules: which module, what command, when a build is stale."""

import os
import shutil
from pathlib import Path

import pytest

from tools.cluster import binaries
from tools.cluster.errors import CommandError, MissingToolError


@pytest.mark.parametrize(
    ("tool", "module"),
    [
        ("kubectl", "kubernetes"),
        ("kube-apiserver", "kubernetes"),
        ("ctr", "containerd"),
        ("helm", "helm"),
        ("helm-unittest", "helm-unittest"),
        ("coredns", "coredns"),
        ("lws", "lws"),
    ],
)
def test_every_tool_has_its_module(tool: str, module: str) -> None:
    assert binaries.module_of(tool).name == module


def test_an_unknown_tool_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MissingToolError, match=r"'kubectx'.*kubectl"):
        binaries.module_of("kubectx")


def test_every_module_is_pinned_in_the_repository() -> None:
    for module in binaries.MODULES:
        assert (binaries.MODULES_DIR / module.name / "go.mod").is_file()
        if module.name != "pause":
            assert (binaries.MODULES_DIR / module.name / "go.sum").is_file()


def test_a_single_program_gets_our_name_and_several_get_their_folders_names() -> None:
    one = binaries.build_argv("go", binaries.module_of("lws"), Path("/o"))
    assert one[one.index("-o") + 1] == "/o/lws"
    several = binaries.build_argv("go", binaries.module_of("kubectl"), Path("/o"))
    assert several[several.index("-o") + 1] == "/o/"
    assert all(package.endswith(f"/{name}") for name, package in binaries.module_of("kubectl").tools.items())


def test_kubernetes_says_its_pinned_version() -> None:
    pinned = (binaries.MODULES_DIR / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes {binaries.KUBERNETES_VERSION}" in pinned
    argv = binaries.build_argv("go", binaries.module_of("kubectl"), Path("/o"))
    assert f"gitVersion={binaries.KUBERNETES_VERSION} " in argv[argv.index("-ldflags") + 1]


def test_a_changed_pin_or_compiler_makes_another_build(tmp_path: Path) -> None:
    module = binaries.module_of("helm")
    shutil.copytree(binaries.MODULES_DIR / "helm", tmp_path / "helm")
    first = binaries.module_digest(module, "go1.26.8 amd64", tmp_path)
    assert first == binaries.module_digest(module, "go1.26.8 amd64")
    assert first != binaries.module_digest(module, "go1.26.9 amd64", tmp_path)
    (tmp_path / "helm" / "go.sum").write_text("changed")
    assert first != binaries.module_digest(module, "go1.26.8 amd64", tmp_path)


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (
            "k8s.io/a\n# k8s.io/b\nx.go:1:2: undefined: y\nk8s.io/client-go/dynamic/fake",
            "x.go:1:2: undefined: y",
        ),
        ("go: go.mod requires go >= 1.26.6 (running go 1.24.0)", "GOTOOLCHAIN=auto"),
        ("", "no reason"),
    ],
)
def test_a_failed_build_tells_the_compilers_complaint(told: str, cause: str) -> None:
    assert cause in binaries.build_failure("helm", told)


def test_a_held_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        binaries.locked(lock, "another one"),
        pytest.raises(CommandError, match="another one still holds"),
        binaries.locked(lock, "another one", timeout_seconds=0.1),
    ):
        pass
    with binaries.locked(lock, "another one", timeout_seconds=0.1):
        pass


def test_taking_down_finds_a_built_tool_without_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRUCTUREDLLM_CACHE", str(tmp_path))
    assert binaries.cached_tool("ctr") is None
    built = tmp_path / "bin" / "containerd-0123" / "ctr"
    built.parent.mkdir(parents=True)
    built.touch()
    assert binaries.cached_tool("ctr") == built


def test_old_and_half_made_builds_of_the_same_module_go(tmp_path: Path) -> None:
    for age, name in enumerate(
        ("helm-a", "helm-b", "helm-c", "helm-unittest-a", ".build-helm@1", ".build-lws@1")
    ):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    binaries.prune_builds(tmp_path, "helm", keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".build-lws@1",
        "helm-b",
        "helm-c",
        "helm-unittest-a",
    ]
