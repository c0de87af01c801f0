"""vLLM 0.22.1, the reporters' version: the fault, the cure, and an engine that starts without the cure.

Nothing there forbids the faulty combination, and asynchronous scheduling is on by itself.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from structuredllm_engine_patches.registry import PATCHES
from tests.engine.engine_process import Engine, engine_environment, pretended_version, running_engine
from tests.engine.traffic import Answer, burst, greedy_answers, summary

SCRIPT = Path(__file__).parent / "scripts" / "config_checks.py"
VERSION = "0.22.1"
UNKNOWN = "0.22.99"


def states(info: dict[str, Any]) -> dict[str, str]:
    return {patch["id"]: patch["state"] for patch in info["patches"]}


@dataclass(frozen=True)
class UnknownVersion:
    """What an engine of a version that nobody proved said and did under the policy `optional`."""

    info: dict[str, Any]
    metrics: str
    log: str
    outcomes: dict[str, int]
    answers: list[Answer]


@pytest.fixture(scope="module")
def unknown(
    old_engine_env: Path, toy_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> UnknownVersion:
    """The engine is gone before the next one starts; nobody asked it for asynchronous scheduling by name."""
    env = {
        **pretended_version(tmp_path_factory.mktemp("metadata"), UNKNOWN),
        "STRUCTUREDLLM_PATCHES": "optional",
    }
    with running_engine("unknown-version", old_engine_env, toy_model, env=env, arguments=()) as engine:
        return UnknownVersion(
            info=dict(engine.info()),
            metrics=engine.metrics(),
            outcomes=summary(burst(engine.url, requests=20, seed="unknown")),
            answers=greedy_answers(engine.url),
            log=engine.log.read_text(errors="replace"),
        )


@pytest.fixture(scope="module")
def patched(old_engine_env: Path, toy_model: Path, unknown: UnknownVersion) -> Iterator[Engine]:
    env = {"STRUCTUREDLLM_PATCHES": "required"}
    arguments = ("--async-scheduling",)
    with running_engine("patched-0.22.1", old_engine_env, toy_model, env=env, arguments=arguments) as engine:
        yield engine


def test_an_unknown_version_starts_with_asynchronous_scheduling_off(unknown: UnknownVersion) -> None:
    assert unknown.info["vllm_version"] == UNKNOWN
    assert unknown.info["async_scheduling"] is False
    reason = unknown.info["async_scheduling_forced_off"]
    for part in ("p001-batch-queue-drain is skipped", f"vLLM {UNKNOWN}", "supported 0.22.1, 0.32.0"):
        assert part in reason
    assert f"asynchronous scheduling is switched off: {reason}" in unknown.log
    assert unknown.outcomes == {"valid": 15, "plain": 5}


def test_an_unknown_version_says_what_works_there_and_counts_nothing(unknown: UnknownVersion) -> None:
    anywhere = {p.id for p in PATCHES if p.other_versions is not None}
    assert states(unknown.info) == {p.id: "active" if p.id in anywhere else "skipped" for p in PATCHES}
    assert "structuredllm_engine_topology_info" in unknown.metrics
    assert "structuredllm_engine_stale_mask" not in unknown.metrics


def test_patched_engine_rejects_nothing(patched: Engine) -> None:
    outcomes = burst(patched.url, requests=60, seed="cold")
    assert summary(outcomes) == {"valid": 45, "plain": 15}
    assert patched.metric("structuredllm_engine_grammar_rejects_total") == 0
    assert patched.metric("structuredllm_engine_stale_mask_total") == 0
    assert patched.metric("structuredllm_engine_drained_batches_total") > 0


def test_tokens_are_those_of_synchronous_scheduling(patched: Engine, unknown: UnknownVersion) -> None:
    answers = greedy_answers(patched.url)
    different = [n for n, (a, b) in enumerate(zip(answers, unknown.answers, strict=True)) if a != b]
    assert different == [], [(answers[n], unknown.answers[n]) for n in different[:2]]
    assert sum(answer.structured for answer in answers) == 20
    assert patched.metric("structuredllm_engine_stale_mask_total") == 0


def test_info_says_what_is_not_applied_to_this_version(patched: Engine) -> None:
    info: dict[str, Any] = patched.info()
    assert info["vllm_version"] == VERSION
    assert info["async_scheduling"] is True
    assert info["async_scheduling_forced_off"] == ""
    assert states(info)["p001-batch-queue-drain"] == "active"
    left_out = {p.id: p.unfit[VERSION].reason for p in PATCHES if VERSION in p.unfit}
    assert {p["id"]: p["reason"] for p in info["patches"] if p["id"] in left_out} == left_out
    assert states(info)["p002-allow-v1-pp-async"] == "not-needed"


def test_unpatched_engine_rejects_cold_structured_requests(old_engine_env: Path, toy_model: Path) -> None:
    """Nobody asks for asynchronous scheduling: this version switches it on by itself."""
    env = {"STRUCTUREDLLM_PATCHES": "disabled"}
    with running_engine("unpatched-0.22.1", old_engine_env, toy_model, env=env, arguments=()) as engine:
        assert engine.info()["async_scheduling"] is True
        outcomes = burst(engine.url, requests=40, seed="unpatched")
        rejected = [o for o in outcomes if o.result == "rejected"]
        assert len(rejected) > 15, summary(outcomes)
        assert all(o.result == "plain" for o in outcomes if not o.structured), summary(outcomes)
        assert engine.metric("structuredllm_engine_grammar_rejects_total") >= len(rejected)
        assert engine.metric("structuredllm_engine_stale_mask_total") > 0


def configured(environment: Path, model: Path, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [str(environment / "bin" / "python"), str(SCRIPT), str(model)],
        env=engine_environment(env),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_upstream_refuses_starts_without_asynchronous_scheduling(
    engine_env: Path, toy_model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32 does not start in the combination; under `optional` an unproven version like it does."""
    version = pretended_version(tmp_path, "0.32.99")
    refused = configured(engine_env, toy_model, {**version, "STRUCTUREDLLM_PATCHES": "disabled"})
    assert "does not support: pipeline parallelism with async scheduling" in refused["error"]
    started = configured(engine_env, toy_model, {**version, "STRUCTUREDLLM_PATCHES": "optional"})
    assert started["async_scheduling"] is False
    assert "vLLM 0.32.99+cpu" in started["reason"]
