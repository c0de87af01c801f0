"""The register against the real vLLM: fingerprints, policies, and an engine that refuses to start."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from structuredllm_engine_patches.registry import PATCHES
from tests.engine.engine_process import engine_environment

SCRIPT = Path(__file__).parent / "scripts" / "register_checks.py"
ALL_ACTIVE = {patch.id: ["active", ""] for patch in PATCHES}


@pytest.fixture(scope="module")
def results(engine_env: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(engine_env / "bin" / "python"), str(SCRIPT)],
        env=engine_environment({"STRUCTUREDLLM_TEST_CPU_ASYNC": "0"}),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_register_imports_nothing_heavy(results: dict[str, Any]) -> None:
    assert results["register_is_light"]


def test_fingerprints_are_those_of_the_pinned_vllm(results: dict[str, Any]) -> None:
    assert {p: f for p, (f, e) in results["fingerprints"].items() if f != e} == {}


def test_required_and_optional_apply_all_once_and_revert(results: dict[str, Any]) -> None:
    for policy in ("required", "optional"):
        assert results[policy]["error"] == ""
        assert results[policy]["states"] == ALL_ACTIVE
        assert all(results[policy]["applied"].values())
        assert results[policy]["registered_twice_is_once"]
    assert all(results["reverted"].values())


def test_disabled_applies_telemetry_only(results: dict[str, Any]) -> None:
    assert {k: v[0] for k, v in results["disabled"]["states"].items()} == {
        patch.id: "active" if patch.always else "disabled" for patch in PATCHES
    }
    assert [k for k, applied in results["disabled"]["applied"].items() if applied] == ["p003-telemetry"]


def test_source_that_someone_else_changed_is_refused(results: dict[str, Any]) -> None:
    required = results["foreign required"]
    assert required["error"].startswith("FingerprintMismatchError: patch p001-batch-queue-drain relies on")
    assert "STRUCTUREDLLM_PATCHES=optional" in required["error"]
    optional = results["foreign optional"]
    assert optional["error"] == ""
    state, reason = optional["states"]["p001-batch-queue-drain"]
    assert state == "skipped"
    assert "step_with_batch_queue" in reason
    assert optional["states"]["p003-telemetry"][0] == "active"


def test_serve_refuses_an_unsupported_version(engine_env: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "vllm-0.31.0+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n")
    done = subprocess.run(
        [str(engine_env / "bin" / "vllm"), "serve", "/nonexistent", "--pipeline-parallel-size", "3"],
        env=engine_environment({"PYTHONPATH": str(tmp_path), "STRUCTUREDLLM_PATCHES": "required"}),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "patch p001-batch-queue-drain does not support vLLM 0.31.0+cpu: supported 0.32.0" in output
    assert "STRUCTUREDLLM_PATCHES=optional" in output
