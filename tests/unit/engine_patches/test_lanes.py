"""The lanes: a bomb holds nobody up."""

import random
from dataclasses import replace

import pytest

from structuredllm_engine_patches.guided.lanes import (
    Demote,
    Lane,
    LaneLimits,
    Lanes,
    Park,
    Refusal,
    Refuse,
    Start,
)

LIMITS = LaneLimits(
    fast_slots=2,
    slow_slots=2,
    waiting_places=3,
    slice_seconds=1,
    patience_seconds=3,
    timeout_seconds=10,
    waiting_seconds=60,
    heavy_weight=1000,
)


def submit(lanes: Lanes, *weights: int, now: float = 0, first: int = 1) -> None:
    for job_id, weight in enumerate(weights, first):
        assert lanes.submit(job_id, weight, now) is None


def test_light_jobs_start_at_once_the_lightest_first() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 30, 10, 20)
    assert lanes.advance(0) == [Start(2, Lane.FAST), Start(3, Lane.FAST)]
    assert lanes.advance(0.5) == []
    lanes.finished(2)
    assert lanes.advance(0.5) == [Start(1, Lane.FAST)]


def test_a_heavy_job_takes_no_fast_slot() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 1000, 5000, 2000)
    assert lanes.advance(0) == [Start(1, Lane.SLOW), Start(2, Lane.SLOW)]
    submit(lanes, 10, first=4)
    assert lanes.advance(0) == [Start(4, Lane.FAST)]
    lanes.finished(1)
    assert lanes.advance(0.5) == [Start(3, Lane.SLOW)]


def test_the_slow_lane_takes_the_lightest_and_the_oldest_in_turn() -> None:
    lanes = Lanes(replace(LIMITS, slow_slots=1, waiting_places=20))
    submit(lanes, *[9000] * 6, now=0)
    assert lanes.advance(0) == [Start(1, Lane.SLOW)]
    submit(lanes, 1500, first=7, now=1)
    submit(lanes, 1400, first=8, now=1)
    order = []
    for job_id in (1, 2, 8, 3, 7):
        lanes.finished(job_id)
        order += lanes.advance(2)
    assert order == [Start(n, Lane.SLOW) for n in (2, 8, 3, 7, 4)]


def test_without_room_in_the_slow_lane_a_long_job_is_demoted_where_it_runs() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 2000, 2000, 1)
    lanes.advance(0)
    assert lanes.wake_at() == 1
    assert lanes.advance(1) == [Demote(3)]
    assert lanes.advance(2) == []
    assert lanes.wake_at() == 10
    lanes.finished(1)
    assert lanes.advance(3) == [], "it moves over without being told again"
    submit(lanes, 1, 2, first=4, now=3)
    assert lanes.advance(3) == [Start(4, Lane.FAST), Start(5, Lane.FAST)]


def test_a_job_beyond_its_slice_is_demoted_and_its_slot_is_free() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 1, 2, 3)
    lanes.advance(0)
    assert lanes.wake_at() == 1
    assert lanes.advance(1) == [Demote(1), Demote(2), Start(3, Lane.FAST)]


def test_with_the_slow_lane_full_a_job_is_parked_only_when_somebody_waits() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 2000, 2000, 1)
    lanes.advance(0)
    assert lanes.advance(9) == [Demote(3)]
    submit(lanes, 2, 3, first=4, now=9)
    assert lanes.advance(9) == [Park(3), Start(4, Lane.FAST), Start(5, Lane.FAST)]


def test_a_parked_job_starts_anew_with_its_whole_time() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 2000, 2000, 1, 2)
    lanes.advance(0)
    submit(lanes, 3, first=5, now=3)
    assert lanes.advance(3) == [Park(3), Park(4), Start(5, Lane.FAST)]
    lanes.finished(5)
    lanes.finished(1)
    assert lanes.advance(4) == [Start(3, Lane.SLOW)]
    lanes.finished(2)
    assert lanes.advance(5) == [Start(4, Lane.SLOW)]
    assert lanes.advance(13.5) == []
    assert lanes.advance(14) == [Refuse(3, Refusal.TIMEOUT, running=True)]
    assert lanes.advance(15) == [Refuse(4, Refusal.TIMEOUT, running=True)]
    assert len(lanes) == 0


@pytest.mark.parametrize(("weight", "lane"), [(1, Lane.FAST), (1000, Lane.SLOW)])
def test_a_job_runs_for_its_time_limit_at_most(weight: int, lane: Lane) -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, weight)
    assert lanes.advance(0) == [Start(1, lane)]
    lanes.advance(9.9)
    assert lanes.advance(10) == [Refuse(1, Refusal.TIMEOUT, running=True)]
    assert lanes.wake_at() is None


def test_too_many_and_too_long_waiting_jobs_are_refused() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, *[2000] * 3)
    assert lanes.submit(4, 2000, 0) == Refuse(4, Refusal.CROWDED, running=False)
    assert lanes.submit(5, 1, 0) is None
    assert lanes.wake_at() == 60
    assert lanes.advance(0, may_start=False) == []
    refused = lanes.advance(60, may_start=False)
    assert {a.job_id for a in refused if isinstance(a, Refuse)} == {1, 2, 3, 5}
    assert {a.reason for a in refused if isinstance(a, Refuse)} == {Refusal.CROWDED}


def test_without_room_among_the_waiting_an_impatient_job_is_refused() -> None:
    lanes = Lanes(LIMITS)
    submit(lanes, 2000, 2000)
    lanes.advance(0)
    submit(lanes, 2000, 2000, 2000, 1, first=3)
    lanes.advance(0)
    submit(lanes, 2, 3, first=8, now=3)
    assert Refuse(6, Refusal.CROWDED, running=True) in lanes.advance(3)


@pytest.mark.parametrize("seed", range(20))
def test_ten_bombs_do_not_hold_up_light_jobs(seed: int) -> None:
    limits = LaneLimits(fast_slots=2, slow_slots=8)
    waits = waits_next_to_bombs(limits, seed)
    assert waits[int(len(waits) * 0.98)] <= 2 * limits.slice_seconds
    assert waits[-1] <= 0.6


def test_without_slices_ten_bombs_hold_up_everybody() -> None:
    limits = LaneLimits(
        fast_slots=2, slow_slots=8, slice_seconds=10, patience_seconds=10, waiting_places=5000
    )
    assert waits_next_to_bombs(limits, seed=0)[-1] > 5


def waits_next_to_bombs(limits: LaneLimits, seed: int) -> list[float]:
    """Ten bombs that look light, and light jobs of 4 ms all the time: what each light job waited, sorted."""
    lanes, rng = Lanes(limits), random.Random(seed)  # noqa: S311
    bombs = set(range(1, 11))
    ends: dict[int, float] = {}
    submitted: dict[int, float] = {}
    waits: list[float] = []
    timed_out: set[int] = set()
    next_id, now, step = 11, 0.0, 0.005
    for bomb in bombs:
        lanes.submit(bomb, rng.randrange(100, 300), 0)
    while now < 60:
        if now < 20 and rng.random() < 0.2:
            submitted[next_id] = now
            assert lanes.submit(next_id, rng.randrange(100, 300), now) is None
            next_id += 1
        for job_id in [j for j, end in ends.items() if end <= now]:
            del ends[job_id]
            lanes.finished(job_id)
        for action in lanes.advance(now):
            if isinstance(action, Start) and action.job_id not in bombs:
                waits.append(now - submitted[action.job_id])
                ends[action.job_id] = now + 0.004
            elif isinstance(action, Refuse):
                assert action.reason is Refusal.TIMEOUT
                timed_out.add(action.job_id)
        now += step
    assert timed_out == bombs, "every bomb ends at its time limit, and nobody else"
    assert len(waits) == len(submitted)
    return sorted(waits)
