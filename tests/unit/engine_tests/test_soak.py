"""The soak's plan is repeatable and bounded, its schemas are valid and unique, its verdict sees faults."""

import collections
import json
import random

import jsonschema_rs
import pytest

from tests.engine.plain_cost import ratio_of
from tests.engine.soak.memory import Growth, Sample, after_warm_up, growth_of
from tests.engine.soak.plan import KINDS, LEAVING, PLAIN, STAYING, bursts, schema_of
from tests.engine.soak.run import Bounds, judge

GOOD = {
    "grammar_rejects": 0.0,
    "grammar_recoveries": 0.0,
    "stale_mask": 0.0,
    "running": 0.0,
    "waiting": 0.0,
    "drained_batches": 5.0,
}
RESULTS = collections.Counter({"valid": 10, "plain": 3, "left": 2})
BOUNDS = Bounds(warm_up=5, growth=10.0)
FLAT = Growth(100.0, 101.0, 0.1)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert list(bursts(100, 7)) == list(bursts(100, 7))
    assert list(bursts(100, 7)) != list(bursts(100, 8))


def test_a_plan_has_exactly_the_structured_requests_asked_for() -> None:
    planned = list(bursts(100, 1))
    staying = [p for burst in planned for p in burst if p.schema is not None and p.leave_after is None]
    assert len(staying) == 100
    assert max(len(burst) for burst in planned) == STAYING + PLAIN + LEAVING
    assert all(sum(p.schema is None for p in burst) == PLAIN for burst in planned)
    assert all(sum(p.leave_after is not None for p in burst) == LEAVING for burst in planned)
    assert len({p.number for burst in planned for p in burst}) == sum(map(len, planned))


def test_every_schema_is_its_own_and_all_kinds_occur() -> None:
    planned = [p for burst in bursts(300, 1) for p in burst if p.schema is not None]
    assert len({json.dumps(p.schema) for p in planned}) == len(planned)
    assert {p.kind for p in planned} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_valid_and_closed(kind: str) -> None:
    rng = random.Random(3)  # noqa: S311 - wants repeatable schemas
    for number in range(30):
        schema = schema_of(kind, number, rng)
        validator = jsonschema_rs.Draft202012Validator(schema)
        assert not validator.is_valid({})
        assert set(schema["required"]) == set(schema["properties"])
        assert schema["additionalProperties"] is False


def test_growth_is_the_slope_of_the_samples() -> None:
    growth = growth_of([(0, 100.0), (1000, 102.0), (2000, 104.0)])
    assert [growth.start, growth.end, growth.per_thousand] == pytest.approx([100.0, 104.0, 2.0])
    with pytest.raises(ValueError, match="two points"):
        growth_of([(5, 1.0), (5, 2.0)])


def test_the_warm_up_does_not_count() -> None:
    samples = [Sample(0, {"a": 10.0, "b": 1.0})] + [
        Sample(
            done, {"a": 50.0, "b": 1.0 + done / 1000, "late": 1.0} if done > 300 else {"a": 50.0, "b": 1.3}
        )
        for done in range(300, 1000, 100)
    ]
    lines = after_warm_up(samples, 400)
    assert set(lines) == {"a", "b", "late", "total"}
    assert lines["a"].per_thousand == pytest.approx(0.0)
    assert lines["b"].per_thousand == pytest.approx(1.0)
    assert set(after_warm_up(samples, 300)) == {"a", "b", "total"}


def test_a_good_run_has_no_faults() -> None:
    assert judge(RESULTS, 10, GOOD, FLAT, BOUNDS) == []


@pytest.mark.parametrize(
    ("results", "metrics", "total", "told"),
    [
        ({"hang": 1}, {}, FLAT, "1 x hang"),
        ({"valid": -1, "union: 500 x": 1}, {}, FLAT, "9 valid answers of 10"),
        ({"left": -2}, {}, FLAT, "lacked"),
        ({}, {"grammar_rejects": 1.0}, FLAT, "grammar_rejects is 1"),
        ({}, {"grammar_recoveries": 1.0}, FLAT, "grammar_recoveries is 1"),
        ({}, {"stale_mask": 2.0}, FLAT, "stale_mask is 2"),
        ({}, {"waiting": 1.0}, FLAT, "waiting is 1"),
        ({}, {"drained_batches": 0.0}, FLAT, "nothing was drained"),
        ({}, {}, Growth(100.0, 111.0, 1.0), "memory grew by 11 MiB"),
    ],
)
def test_every_fault_is_told(
    results: dict[str, int], metrics: dict[str, float], total: Growth, told: str
) -> None:
    found = collections.Counter(RESULTS)
    found.update(results)
    assert any(told in fault for fault in judge(+found, 10, {**GOOD, **metrics}, total, BOUNDS))


def test_the_cost_of_plain_generation_is_a_ratio_of_pairs() -> None:
    ratio = ratio_of([1.0, 4.0, 2.0], [1.0, 4.0, 2.0])
    assert (ratio.mean, ratio.standard_error) == (1.0, 0.0)
    assert ratio_of([2.0, 8.0], [1.0, 4.0]).mean == pytest.approx(2.0)
    assert ratio_of([1.1, 0.9], [1.0, 1.0]).standard_error > 0.05
    with pytest.raises(ValueError, match="two pairs"):
        ratio_of([1.0], [1.0])
