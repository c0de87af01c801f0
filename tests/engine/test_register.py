"""The register against the real vLLM: fingerprints, policies, and an engine that refuses to start."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from structuredllm_engine_patches.registry import PATCHES
from structuredllm_engine_patches.versions import SUPPORTED
from tests.engine.engine_process import engine_environment, pretended_version
from tools.engine_env import ensure_engine_env

SCRIPT = Path(__file__).parent / "scripts" / "register_checks.py"


@dataclass(frozen=True)
class Results:
    """What the script saw in the environment of one version of vLLM."""

    version: str
    found: dict[str, Any]

    def expected(self, policy: str) -> dict[str, str]:
        """Return the state that each patch must have when everything fits."""
        states: dict[str, str] = {}
        for patch in PATCHES:
            unfit = patch.unfit.get(self.version)
            if policy == "disabled" and not patch.always:
                states[patch.id] = "disabled"
            elif unfit is not None:
                states[patch.id] = "unavailable" if unfit.needed else "not-needed"
            else:
                states[patch.id] = "active"
        return states


@pytest.fixture(scope="module", params=SUPPORTED)
def results(request: pytest.FixtureRequest) -> Results:
    version: str = request.param
    done = subprocess.run(
        [str(ensure_engine_env(version) / "bin" / "python"), str(SCRIPT)],
        env=engine_environment({"STRUCTUREDLLM_TEST_CPU_ASYNC": "0"}),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Results(version, json.loads(done.stdout.splitlines()[-1]))


def test_register_imports_nothing_heavy(results: Results) -> None:
    assert results.found["register_is_light"]


def test_fingerprints_are_those_of_the_pinned_vllm(results: Results) -> None:
    assert {p: f for p, (f, e) in results.found["fingerprints"].items() if f != e} == {}


@pytest.mark.parametrize("policy", ["required", "optional", "disabled"])
def test_a_policy_applies_what_it_should_once_and_reverts(results: Results, policy: str) -> None:
    found = results.found[policy]
    assert found["error"] == ""
    assert {patch: state for patch, (state, _) in found["states"].items()} == results.expected(policy)
    active = {patch for patch, state in results.expected(policy).items() if state == "active"}
    assert {patch for patch, applied in found["applied"].items() if applied} == active
    assert found["registered_twice_is_once"]
    assert all(results.found["reverted"].values())


def test_source_that_someone_else_changed_is_refused(results: Results) -> None:
    required = results.found["foreign required"]
    assert required["error"].startswith("FingerprintMismatchError: patch p001-batch-queue-drain relies on")
    assert "STRUCTUREDLLM_PATCHES=optional" in required["error"]
    optional = results.found["foreign optional"]
    assert optional["error"] == ""
    state, reason = optional["states"]["p001-batch-queue-drain"]
    assert state == "skipped"
    assert "step_with_batch_queue" in reason
    assert optional["states"]["p003-telemetry"][0] == "active"


def test_serve_refuses_an_unsupported_version(engine_env: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(engine_env / "bin" / "vllm"), "serve", "/nonexistent", "--pipeline-parallel-size", "3"],
        env=engine_environment(
            {**pretended_version(tmp_path, "0.31.0"), "STRUCTUREDLLM_PATCHES": "required"}
        ),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "patch p001-batch-queue-drain does not support vLLM 0.31.0+cpu: supported 0.22.1, 0.32.0" in output
    assert "STRUCTUREDLLM_PATCHES=optional" in output
