"""The patched engine: nothing rejected, nothing stale, nothing left behind."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from structuredllm_engine_patches.patch import Process
from structuredllm_engine_patches.registry import PATCHES
from tests.engine.ends import ask_endings, plain_answers
from tests.engine.engine_process import Engine, log_folder, running_engine
from tests.engine.soak.run import ARGUMENTS, ENVIRONMENT, Bounds, soak
from tests.engine.traffic import burst, summary

SHORT_SOAK = 600


@pytest.fixture(scope="module")
def patched(engine_env: Path, toy_model: Path) -> Iterator[Engine]:
    # Spawned, not forked, as on a GPU: each process loads the patches anew.
    env = {**ENVIRONMENT, "STRUCTUREDLLM_TEST_FORK": "0"}
    with running_engine("patched", engine_env, toy_model, env=env, arguments=ARGUMENTS) as engine:
        yield engine


def test_cold_mixed_burst_is_all_valid(patched: Engine) -> None:
    outcomes = burst(patched.url, requests=60, seed="cold")
    assert summary(outcomes) == {"valid": 45, "plain": 15}
    assert patched.metric("structuredllm_engine_grammar_rejects_total") == 0
    assert patched.metric("structuredllm_engine_stale_mask_total") == 0
    assert patched.metric("structuredllm_engine_drained_batches_total") > 0


def test_a_warm_burst_of_one_schema_is_all_valid(patched: Engine) -> None:
    for _ in range(2):
        outcomes = burst(patched.url, requests=30, seed="warm", plain_every=3)
        assert summary(outcomes) == {"valid": 20, "plain": 10}
    assert patched.metric("structuredllm_engine_stale_mask_total") == 0


def test_clients_that_leave_do_not_disturb_the_others(patched: Engine) -> None:
    import asyncio

    from tests.engine.traffic import schema_of

    async def leave(number: int) -> None:
        body = {
            "model": "toy",
            "messages": [{"role": "user", "content": f"leaving {number}"}],
            "max_tokens": 200,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema_of(number, "leave")},
            },
        }
        async with httpx.AsyncClient(base_url=patched.url, timeout=0.05 + 0.03 * number) as client:
            try:
                await client.post("/v1/chat/completions", json=body)
            except httpx.TimeoutException:
                return

    async def both() -> None:
        await asyncio.gather(*(leave(n) for n in range(12)))

    asyncio.run(both())
    assert summary(burst(patched.url, requests=20, seed="stay")) == {"valid": 15, "plain": 5}
    assert patched.metric("structuredllm_engine_grammar_rejects_total") == 0


def test_info_tells_what_runs(patched: Engine) -> None:
    info = patched.info()
    states = {p["id"]: p["state"] for p in info["patches"]}  # type: ignore[attr-defined]
    assert list(states) == [patch.id for patch in PATCHES]
    for patch in PATCHES:
        in_core = Process.ENGINE_CORE in patch.processes
        assert states[patch.id] in (["active"] if in_core else ["active", "elsewhere"]), patch.id
    assert info["policy"] == "required"
    assert info["vllm_version"] == "0.32.0"
    assert info["async_scheduling"] is True
    assert (info["tensor_parallel_size"], info["pipeline_parallel_size"], info["world_size"]) == (1, 3, 3)
    assert info["structured_outputs_backend"] == "xgrammar"
    assert str(info["model"]).endswith("/toy")


def test_plain_answers_do_not_depend_on_structured_neighbours(patched: Engine) -> None:
    alone = plain_answers(patched.url, beside=0, seed="alone")
    mixed = plain_answers(patched.url, beside=24, seed="beside")
    different = [n for n, (a, b) in enumerate(zip(alone, mixed, strict=True)) if a != b]
    assert different == [], [(alone[n], mixed[n]) for n in different[:2]]
    assert all(len(answer.token_ids) == 40 or answer.finish_reason == "stop" for answer in alone)


def test_every_way_to_end_ends_clean(patched: Engine) -> None:
    rejects = patched.metric("structuredllm_engine_grammar_rejects_total")
    assert ask_endings(patched.url, "fin") == {}
    assert patched.metric("structuredllm_engine_grammar_rejects_total") == rejects


def test_ignore_eos_is_kept_for_plain_requests(patched: Engine) -> None:
    body = {"model": "toy", "prompt": "on", "max_tokens": 50, "ignore_eos": True, "logit_bias": {"2": 100}}
    response = httpx.post(f"{patched.url}/v1/completions", json=body, timeout=60)
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"


def test_short_soak_has_no_faults(patched: Engine) -> None:
    """The form of `make soak-engine` that every test run can afford.

    Memory is judged there, on an engine whose caches are bounded and warm: this one's grammar cache may still
    grow to its limit of 512 MiB.
    """
    outcome = soak(
        patched,
        structured=SHORT_SOAK,
        seed=600,
        bounds=Bounds(warm_up=SHORT_SOAK // 3, growth=512.0),
        progress=lambda line: print(f"soak: {line}", flush=True),
    )
    report = log_folder() / "soak-short.json"
    report.write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    assert outcome.faults == [], (outcome.results, outcome.memory)
    assert outcome.results["valid"] == SHORT_SOAK
