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
