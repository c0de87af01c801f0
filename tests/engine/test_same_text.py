"""Asynchronous scheduling does not change an answer: token ids equal those of synchronous scheduling.

The reference is one synchronous engine with one stage, room for everything, whole prefills and no prefix
caching; no client leaves it. The asynchronous engines have small prefill chunks, prefix caching, a KV cache
too small for their batch, and clients that leave, so an answer may depend on none of these. The number of
stages does not change the arithmetic (the same layers, float32); STRUCTUREDLLM_FULL=1 shows that with
synchronous scheduling at three stages, and runs asynchronous scheduling at one to four. The setting of the
phases does not change an answer either.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema_rs
import pytest

from tests.engine.engine_process import Engine, running_engine
from tests.engine.text_cases import Answer, answers_of, cases, differences

REQUIRED = {"STRUCTUREDLLM_PATCHES": "required"}
PREFILL_BUDGET = 64
COMMON = ("--block-size", "32", "--max-model-len", "512")
ROOMY = (*COMMON, "--no-async-scheduling", "--max-num-batched-tokens", "2048", "--no-enable-prefix-caching")
TIGHT = (
    *COMMON,
    "--max-num-batched-tokens", str(PREFILL_BUDGET),
    "--enable-prefix-caching",
    # One request of full length needs 16 blocks, a full batch of these requests over 100.
    "--num-gpu-blocks-override", "36",
)  # fmt: skip

FULL = os.environ.get("STRUCTUREDLLM_FULL") == "1"
MOST_STAGES = int(os.environ.get("STRUCTUREDLLM_TEST_MOST_STAGES", "4"))
ALL_ARRANGEMENTS = (
    ("async", 3, "off"),
    ("async", 2, "off"),
    ("async", 3, "on"),
    *((("async", 1, "off"), ("async", 4, "off"), ("async", 4, "auto"), ("sync", 3, "off")) if FULL else ()),
)
ARRANGEMENTS = [arrangement for arrangement in ALL_ARRANGEMENTS if arrangement[1] <= MOST_STAGES]
SET = cases()


@dataclass(frozen=True)
class Run:
    """What an engine under pressure answered, and what its metrics said afterwards."""

    answers: dict[str, Answer]
    info: Mapping[str, object]
    served: Mapping[str, float]
    ours: Mapping[str, float]
    phases: str


@pytest.fixture(scope="module")
def reference(engine_env: Path, toy_model: Path) -> dict[str, Answer]:
    with running_engine(
        "text-reference", engine_env, toy_model, env=REQUIRED, arguments=ROOMY, stages=1
    ) as engine:
        assert engine.info()["async_scheduling"] is False
        answers = answers_of(engine.url, SET, leaving=False)
        assert engine.served_metric("vllm:num_preemptions_total") == 0
    return answers


@pytest.fixture(scope="module", params=ARRANGEMENTS, ids=lambda p: f"{p[0]}-pp{p[1]}-phases-{p[2]}")
def run(
    request: pytest.FixtureRequest, engine_env: Path, toy_model: Path, reference: dict[str, Answer]
) -> Iterator[Run]:
    scheduling, stages, phases = request.param
    flag = "--async-scheduling" if scheduling == "async" else "--no-async-scheduling"
    with running_engine(
        f"text-{scheduling}-pp{stages}-phases-{phases}",
        engine_env,
        toy_model,
        env={**REQUIRED, "STRUCTUREDLLM_PHASES": phases},
        arguments=(*TIGHT, flag),
        stages=stages,
    ) as engine:
        assert engine.info()["async_scheduling"] is (scheduling == "async")
        yield _observe(engine, phases)


def _observe(engine: Engine, phases: str) -> Run:
    answers = answers_of(engine.url, SET, leaving=True)
    served = {
        name: engine.served_metric(f"vllm:{name}_total")
        for name in ("num_preemptions", "prefix_cache_hits", "generation_tokens")
    }
    ours = {
        name: engine.metric(f"structuredllm_engine_{name}_total")
        for name in ("grammar_rejects", "grammar_recoveries", "stale_mask", "drained_batches")
    }
    return Run(answers, engine.info(), served, ours, phases)


def test_the_answers_are_those_of_synchronous_scheduling(run: Run, reference: dict[str, Answer]) -> None:
    found = differences(run.answers, reference)
    assert found == [], f"{len(found)} of {len(SET)} differ: {json.dumps(found[:5], indent=1)}"


def test_the_traffic_was_what_it_was_meant_to_be(run: Run, reference: dict[str, Answer]) -> None:
    assert run.served["num_preemptions"] > 0
    assert run.served["prefix_cache_hits"] > 0
    choices = [choice for answer in run.answers.values() for choice in answer.choices]
    assert sum(choice.finish_reason is None for choice in choices) >= 5, "too few clients left early"
    whole = sum(len(choice.token_ids) for answer in reference.values() for choice in answer.choices)
    assert run.served["generation_tokens"] < whole, "nothing was aborted"
    # A step computes no more tokens than the budget, so these prompts took three steps and more.
    assert sum(answer.prompt_tokens > 2 * PREFILL_BUDGET for answer in reference.values()) >= 5


def test_no_mask_was_stale_and_nothing_rejected(run: Run) -> None:
    assert run.ours["grammar_rejects"] == run.ours["grammar_recoveries"] == run.ours["stale_mask"] == 0
    if run.phases == "on":
        # No request has two tokens in flight, so no mask waits for another step.
        assert run.ours["drained_batches"] == 0
    elif run.info["async_scheduling"] and run.info["pipeline_parallel_size"] in (3, 4):
        assert run.ours["drained_batches"] > 0


def test_the_reference_is_worth_comparing_with(reference: dict[str, Answer]) -> None:
    """Answers keep to their schemas, and differ from one another where they should."""
    for case in SET:
        answer = reference[case.name]
        assert len(answer.choices) == case.body.get("n", 1)
        if case.schema is not None:
            for choice in answer.choices:
                assert choice.finish_reason == "stop", (case.name, choice)
                assert jsonschema_rs.is_valid(case.schema, json.loads(choice.text)), (case.name, choice)
    tokens = [tuple(choice.token_ids) for answer in reference.values() for choice in answer.choices]
    assert len(set(tokens)) > 0.8 * len(tokens)
