"""The register as a whole, and what is made from it."""

import subprocess
import sys
from pathlib import Path

import pytest

import structuredllm_engine_patches
from structuredllm_engine_patches.errors import UnsupportedVersionError
from structuredllm_engine_patches.import_hook import find_hook
from structuredllm_engine_patches.registry import PATCHES
from structuredllm_engine_patches.render import main, render_patches
from structuredllm_engine_patches.versions import NEWER, SUPPORTED


def test_ids_are_unique_and_targets_are_fingerprinted() -> None:
    assert len({p.id for p in PATCHES}) == len(PATCHES)
    for version in {version for patch in PATCHES for version in patch.fits}:
        targets = [t for p in PATCHES if version in p.fits for t in p.fits[version].targets]
        assert len(set(targets)) == len(targets)
    for patch in PATCHES:
        for fit in patch.fits.values():
            assert set(fit.targets) <= set(fit.fingerprints)
            assert {target.partition(":")[0] for target in fit.targets} == {fit.module}
        assert patch.upstream.startswith("https://github.com/vllm-project/vllm/")
        assert patch.why
        assert patch.upstream_change
        assert patch.remove_when


def test_every_patch_says_something_about_every_supported_version() -> None:
    """Silence would stop an engine of a version that is said to be supported."""
    for patch in PATCHES:
        for version in SUPPORTED:
            assert patch.fit_for(version) or version in patch.unfit, f"{patch.id} is silent on vLLM {version}"
        assert not set(patch.fits) & set(patch.unfit)
        assert set(patch.fits) | set(patch.unfit) <= set(SUPPORTED)
        assert all(unfit.reason for unfit in patch.unfit.values())


def test_the_drain_is_there_wherever_it_is_needed_and_the_guard_everywhere() -> None:
    drain, guard = (next(p for p in PATCHES if p.id.startswith(f"{n}-")) for n in ("p001", "p040"))
    assert set(drain.fits) == set(SUPPORTED)
    assert drain.fit_for("0.33.0") is None
    assert guard.vital
    assert guard.fit_for("0.33.0") is not None


def test_page_names_what_is_not_applied_and_what_newer_releases_need() -> None:
    page = render_patches(PATCHES)
    assert "| `p002-allow-v1-pp-async` | not needed | applied | no |" in page
    assert "- vLLM 0.22.1: not needed, this version does not refuse the combination" in page
    for release in NEWER:
        assert release.version not in SUPPORTED
        assert f"vLLM {release.version} is not supported" in page


def test_committed_page_is_current(tmp_path: Path) -> None:
    assert main(["--check"]) == 0
    page = tmp_path / "PATCHES.md"
    assert main(["--check", str(page)]) == 1
    assert main([str(page)]) == 0
    assert page.read_text() == render_patches(PATCHES)


def test_entry_point_imports_nothing_before_it_is_called() -> None:
    code = (
        "import sys; before = set(sys.modules); import structuredllm_engine_patches as p;"
        "print(sorted(m for m in set(sys.modules) - before if m != p.__name__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_register_raises_where_vllm_is_missing_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRUCTUREDLLM_PATCHES", raising=False)
    for _ in range(2):
        with pytest.raises(UnsupportedVersionError, match="no distribution named vllm"):
            structuredllm_engine_patches.register()
    assert find_hook() is None


def test_the_phases_come_after_the_rule_that_they_inherit() -> None:
    """Applied first, p041 would keep a `schedule` without p045 where both modules are imported already."""
    order = [patch.id[:4] for patch in PATCHES]
    assert order.index("p045") < order.index("p041")
