"""A hybrid model: Mamba-2 beside attention, prefix caching, cache mode "align"; issue 45014 came from one.

Such models are why the V1 runner has to work with a pipeline and asynchronous scheduling.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest

from tests.engine.engine_process import Engine, running_engine
from tests.engine.text_cases import Answer, answers_of, cases, differences
from tests.engine.traffic import burst, summary
from tools.models.store import ensure_model

REQUIRED = {"STRUCTUREDLLM_PATCHES": "required"}
COMMON = ("--block-size", "32", "--max-model-len", "512", "--mamba-ssm-cache-dtype", "float32")
SET = cases()


@pytest.fixture(scope="module")
def hybrid_model(engine_env: Path) -> Path:
    return ensure_model("toy-hybrid")


@pytest.fixture(scope="module")
def reference(engine_env: Path, hybrid_model: Path) -> dict[str, Answer]:
    arguments = (
        *COMMON, "--no-async-scheduling", "--max-num-batched-tokens", "2048", "--no-enable-prefix-caching"
    )  # fmt: skip
    with running_engine(
        "hybrid-reference", engine_env, hybrid_model, env=REQUIRED, arguments=arguments, stages=1
    ) as engine:
        return answers_of(engine.url, SET, leaving=False)


@pytest.fixture(scope="module")
def patched(engine_env: Path, hybrid_model: Path, reference: dict[str, Answer]) -> Iterator[Engine]:
    arguments = (*COMMON, "--async-scheduling", "--enable-prefix-caching", "--mamba-cache-mode", "align")
    with running_engine("hybrid", engine_env, hybrid_model, env=REQUIRED, arguments=arguments) as engine:
        yield engine


def test_the_answers_are_those_of_synchronous_scheduling(
    patched: Engine, reference: dict[str, Answer]
) -> None:
    found = differences(answers_of(patched.url, SET, leaving=True), reference)
    assert found == [], f"{len(found)} of {len(SET)} differ: {json.dumps(found[:5], indent=1)}"
    assert patched.served_metric("vllm:prefix_cache_hits_total") > 0
    assert patched.metric("structuredllm_engine_drained_batches_total") > 0


def test_cold_mixed_bursts_are_all_valid(patched: Engine) -> None:
    for number in range(2):
        outcomes = burst(patched.url, requests=48, seed=f"hybrid{number}")
        assert summary(outcomes) == {"valid": 36, "plain": 12}
    for name in ("grammar_rejects", "grammar_recoveries", "stale_mask"):
        assert patched.metric(f"structuredllm_engine_{name}_total") == 0, name


def test_the_answers_keep_to_their_schemas(reference: dict[str, Answer]) -> None:
    for name, schema in [(case.name, case.schema) for case in SET if case.schema is not None]:
        for choice in reference[name].choices:
            assert choice.finish_reason == "stop", (name, choice)
            assert jsonschema_rs.is_valid(schema, json.loads(choice.text)), (name, choice)
