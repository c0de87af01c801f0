"""Policy, order and idempotence of applying patches, on a module of our own in vLLM's place."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from structuredllm_engine_patches import compat
from structuredllm_engine_patches import patch as patching
from structuredllm_engine_patches.errors import FingerprintMismatchError, UnsupportedVersionError
from structuredllm_engine_patches.import_hook import find_hook
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.settings import Policy, Settings
from structuredllm_engine_patches.telemetry.observation import State

MODULE = "sllm_fake_target"
TARGET = f"{MODULE}:Engine.step"


@pytest.fixture(autouse=True)
def target_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    source = (Path(__file__).parent / "fake_target.py").read_text()
    (tmp_path / f"{MODULE}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield
    sys.modules.pop(MODULE, None)


def build(original: Callable[..., list[str]], _: Any) -> Callable[..., list[str]]:
    def step(self: Any) -> list[str]:
        return [*original(self), "patched"]

    return step


def right_fingerprint() -> str:
    source = (Path(__file__).parent / "fake_target.py").read_text()
    return compat.fingerprint_source(source[source.index("    def step") :])


def make_patch(
    *,
    fingerprint: str | None = None,
    versions: tuple[str, ...] = ("1.0",),
    processes: tuple[Process, ...] = (Process.ENGINE_CORE,),
    **others: Any,
) -> Patch:
    fit = Fit(
        targets=(TARGET,),
        fingerprints={TARGET: right_fingerprint() if fingerprint is None else fingerprint},
    )
    return Patch(
        id="p900-test",
        title="test",
        processes=processes,
        fits=dict.fromkeys(versions, fit),
        why="test",
        upstream="https://example.org",
        upstream_change="nothing",
        remove_when="never",
        build=build,
        **others,
    )


@pytest.fixture
def install() -> Iterator[Callable[..., Installation]]:
    made: list[Installation] = []

    def _install(patch: Patch, policy: Policy = Policy.REQUIRED) -> Installation:
        installation = Installation([patch], Settings(policy, "127.0.0.1", 0), "1.0+local")
        made.append(installation)
        installation.apply()
        return installation

    yield _install
    for installation in made:
        installation.revert()


def call() -> list[str]:
    result: list[str] = importlib.import_module(MODULE).Engine().step()
    return result


def test_applies_at_once_where_the_module_is_imported(install: Callable[..., Installation]) -> None:
    assert call() == ["upstream"]
    installation = install(make_patch())
    assert call() == ["upstream", "patched"]
    assert installation.state_of("p900-test") is State.ACTIVE


def test_applies_when_the_module_is_imported_later_and_does_not_import_it(
    install: Callable[..., Installation],
) -> None:
    installation = install(make_patch())
    assert MODULE not in sys.modules
    assert installation.state_of("p900-test") is State.SKIPPED
    assert call() == ["upstream", "patched"]
    assert installation.state_of("p900-test") is State.ACTIVE
    assert type(importlib.import_module(MODULE).__spec__.loader).__name__ == "SourceFileLoader"  # type: ignore[union-attr]


def test_a_patch_of_other_processes_is_elsewhere_until_its_module_is_imported(
    install: Callable[..., Installation],
) -> None:
    installation = install(make_patch(processes=(Process.FRONT_END, Process.WORKER)))
    (state,) = installation.states()
    assert state.state is State.ELSEWHERE
    assert state.reason == "takes effect in: front-end, worker"
    assert call() == ["upstream", "patched"]
    assert installation.state_of("p900-test") is State.ACTIVE


def test_applied_twice_is_the_same_and_reverted_is_the_original(install: Callable[..., Installation]) -> None:
    engine = importlib.import_module(MODULE).Engine
    original = engine.step
    patch = make_patch()
    installation = install(patch)
    patching.apply(patch, patch.fits["1.0"], installation)
    assert call() == ["upstream", "patched"]
    installation.revert()
    assert engine.step is original
    assert find_hook() is None
    installation.revert()


def test_required_patch_for_another_version_stops_without_import(
    install: Callable[..., Installation],
) -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"p900-test does not support vLLM 1\.0\+local: supported 2\.0"
    ):
        install(make_patch(versions=("2.0",)))
    assert MODULE not in sys.modules


def test_required_patch_on_changed_source_fails_every_import(install: Callable[..., Installation]) -> None:
    install(make_patch(fingerprint="0" * 16))
    for _ in range(2):
        with pytest.raises(FingerprintMismatchError, match="p900-test relies on"):
            importlib.import_module(MODULE)


@pytest.mark.parametrize("patch", [{"versions": ("2.0",)}, {"fingerprint": "0" * 16}])
def test_optional_patch_that_does_not_fit_is_skipped_with_its_reason(
    install: Callable[..., Installation], patch: dict[str, Any]
) -> None:
    installation = install(make_patch(**patch), Policy.OPTIONAL)
    assert call() == ["upstream"]
    (state,) = installation.states()
    assert state.state is State.SKIPPED
    assert "p900-test" in state.reason


def test_disabled_applies_only_what_always_runs(install: Callable[..., Installation]) -> None:
    installation = install(make_patch(), Policy.DISABLED)
    assert call() == ["upstream"]
    assert installation.state_of("p900-test") is State.DISABLED
    watching = install(make_patch(always=True), Policy.DISABLED)
    assert call() == ["upstream", "patched"]
    assert watching.state_of("p900-test") is State.ACTIVE


@pytest.mark.parametrize(
    ("needed", "state"), [(False, State.NOT_NEEDED), (True, State.UNAVAILABLE)], ids=["not-needed", "no-cure"]
)
def test_a_version_that_the_register_leaves_out_stops_no_engine(
    install: Callable[..., Installation], caplog: pytest.LogCaptureFixture, needed: bool, state: State
) -> None:
    left_out = {"1.0": Unfit("because of that", needed=needed)}
    installation = install(make_patch(versions=("2.0",), unfit=left_out), Policy.REQUIRED)
    assert call() == ["upstream"]
    assert [(s.state, s.reason) for s in installation.states()] == [(state, "because of that")]
    assert ("because of that" in caplog.text) == needed


@pytest.mark.parametrize("policy", [Policy.REQUIRED, Policy.OPTIONAL])
def test_what_works_on_any_version_is_applied_to_one_that_nobody_knows(
    install: Callable[..., Installation], policy: Policy
) -> None:
    anywhere = Fit(targets=(TARGET,), fingerprints={})
    installation = install(make_patch(versions=(), other_versions=anywhere), policy)
    assert call() == ["upstream", "patched"]
    assert installation.state_of("p900-test") is State.ACTIVE


def test_what_an_unknown_version_does_not_have_is_skipped(install: Callable[..., Installation]) -> None:
    gone = Fit(targets=(TARGET, f"{MODULE}:Engine.gone"), fingerprints={})
    installation = install(make_patch(versions=(), other_versions=gone), Policy.OPTIONAL)
    assert call() == ["upstream"], "all targets of a patch or none"
    (state,) = installation.states()
    assert state.state is State.SKIPPED
    assert "Engine.gone, which this vLLM does not have" in state.reason


def test_a_vital_patch_that_cannot_be_placed_stops_an_optional_engine_too(
    install: Callable[..., Installation],
) -> None:
    gone = Fit(targets=(f"{MODULE}:Engine.gone",), fingerprints={})
    install(make_patch(versions=(), other_versions=gone, vital=True), Policy.OPTIONAL)
    with pytest.raises(FingerprintMismatchError, match=r"Engine\.gone"):
        call()
