"""The fault is real: without the patch, and with its drain broken on purpose, cold structured requests
die."""

from pathlib import Path

import pytest

from structuredllm_engine_patches.registry import PATCHES
from tests.engine.engine_process import log_folder, running_engine
from tests.engine.traffic import burst, summary

ASYNC = ("--async-scheduling",)


def test_unpatched_engine_rejects_cold_structured_requests(engine_env: Path, toy_model: Path) -> None:
    env = {"STRUCTUREDLLM_PATCHES": "disabled", "STRUCTUREDLLM_TEST_ALLOW_UNPATCHED": "1"}
    with running_engine("unpatched", engine_env, toy_model, env=env, arguments=ASYNC) as engine:
        outcomes = burst(engine.url, requests=40, seed="unpatched")
        structured = [o for o in outcomes if o.structured]
        rejected = [o for o in structured if o.result == "rejected"]
        assert len(rejected) > len(structured) / 2, summary(outcomes)
        assert {o.stream for o in rejected} == {True, False}, "both shapes of the reject must be seen"
        assert all(o.result == "plain" for o in outcomes if not o.structured), summary(outcomes)
        assert engine.metric("structuredllm_engine_grammar_rejects_total") >= len(rejected)
        assert engine.metric("structuredllm_engine_stale_mask_total") > 0
        assert engine.metric("structuredllm_engine_drained_batches_total") == 0
        states = {p["id"]: p["state"] for p in engine.info()["patches"]}  # type: ignore[attr-defined]
        assert states == {patch.id: "active" if patch.always else "disabled" for patch in PATCHES}


@pytest.mark.parametrize("mutation", ["no-drain"])
def test_broken_drain_is_noticed(engine_env: Path, toy_model: Path, mutation: str) -> None:
    env = {"STRUCTUREDLLM_PATCHES": "required", "STRUCTUREDLLM_TEST_MUTATE": mutation}
    with running_engine(f"mutated-{mutation}", engine_env, toy_model, env=env, arguments=ASYNC) as engine:
        outcomes = burst(engine.url, requests=40, seed="mutated")
        assert summary(outcomes).get("rejected", 0) > 0, summary(outcomes)
        assert engine.metric("structuredllm_engine_stale_mask_total") > 0
        assert engine.metric("structuredllm_engine_grammar_rejects_total") > 0
    lines = engine.log.read_text(errors="replace").splitlines()
    told = [line for line in lines if "stale mask" in line or "FSM" in line or "grammar rejected" in line]
    assert any("stale mask" in line for line in told)
    (log_folder() / f"mutated-{mutation}.excerpt").write_text(
        f"outcomes: {summary(outcomes)}\n" + "\n".join(told[:40]) + "\n"
    )
