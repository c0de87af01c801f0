from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest

from structuredllm_probe.config import BurstConfig
from structuredllm_probe.plan import plan_burst
from structuredllm_probe.schemas import SHAPES, schema_for
from tests.fakes.schema_answers import answer_for


def _longest(schema: Mapping[str, Any]) -> Any:
    """Return the longest answer the schema allows."""
    if "enum" in schema:
        return max(schema["enum"], key=len)
    if "anyOf" in schema:
        return max(map(_longest, schema["anyOf"]), key=lambda value: len(json.dumps(value)))
    match schema["type"]:
        case "object":
            return {name: _longest(inner) for name, inner in schema["properties"].items()}
        case "array":
            return [_longest(schema["items"])] * schema["maxItems"]
        case "integer":
            return schema["maximum"]
        case "boolean":
            return False
    return None


@pytest.mark.parametrize("index", range(4 * SHAPES))
def test_every_answer_fits_96_tokens_of_one_character(index: int) -> None:
    schema = schema_for("any seed", index)
    longest = _longest(schema)
    assert jsonschema_rs.is_valid(dict(schema), longest)
    assert len(json.dumps(longest)) <= BurstConfig(seed="s").max_tokens


@pytest.mark.parametrize("index", range(SHAPES))
def test_objects_are_closed_and_numbers_small(index: int) -> None:
    schema = schema_for("s", index)
    good = answer_for(schema)
    validator = jsonschema_rs.validator_for(dict(schema))
    assert not validator.is_valid({**good, "more": 1})
    assert not validator.is_valid({})
    assert all(0 <= n <= 150 for n in _numbers(_longest(schema)))


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [n for inner in value.values() for n in _numbers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in _numbers(inner)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def test_schemas_differ_by_index_and_by_seed_and_repeat_for_the_same_seed() -> None:
    texts = {json.dumps(schema_for(seed, i)) for seed in ("a", "b") for i in range(200)}
    assert len(texts) == 400
    assert schema_for("a", 7) == schema_for("a", 7)


def test_plan_mixes_and_is_deterministic() -> None:
    config = BurstConfig(requests=40, seed="s")
    planned = plan_burst("toy", config)
    structured = [p for p in planned if p.schema is not None]
    plain = [p for p in planned if p.schema is None]
    assert (len(structured), len(plain)) == (30, 10)
    assert sum(p.streamed for p in structured) == 15
    assert sum(p.streamed for p in plain) == 5
    assert planned[0].schema is not None
    # Spread evenly: no run of structured requests without a plain one between.
    assert [p.index for p in plain] == list(range(3, 40, 4))
    assert planned == plan_burst("toy", config)


def test_bodies_ask_for_strict_schemas_and_a_fixed_seed() -> None:
    planned = plan_burst("toy", BurstConfig(requests=8, seed="s"))
    for request in planned:
        assert request.body["model"] == "toy"
        assert 0 <= request.body["seed"] < 2**31
        assert request.body["stream"] is request.streamed
        if request.schema is None:
            assert "response_format" not in request.body
        else:
            wrapper = request.body["response_format"]["json_schema"]
            assert request.body["response_format"]["type"] == "json_schema"
            assert (wrapper["strict"], wrapper["schema"]) == (True, request.schema)
    assert len({request.body["seed"] for request in planned}) == 8


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_burst_always_has_a_structured_request(share: float) -> None:
    planned = plan_burst("toy", BurstConfig(requests=1, plain_share=share, seed="s"))
    assert planned[0].schema is not None
