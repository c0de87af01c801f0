"""The seam of the phases on a stand-in for the scheduler: who may go, what is refused, what is sent."""

import logging
import time
from typing import Any

import pytest

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.seams.phase_balancing import build_schedule, reason_against
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU
from tests.unit.engine_patches.pipeline_model import ModelScheduler

LOGGER = logging.getLogger("test")


class Told:
    """Spreads as the test says."""

    def __init__(self, *, spread: bool = True) -> None:
        self.answer = spread
        self.seen: list[tuple[int, float]] = []

    def spread(self, decodes: int) -> bool:
        return self.answer

    def observe(self, decodes: int, seconds: float) -> None:
        self.seen.append((decodes, round(seconds, 6)))


def patched(*, enabled: bool = True, told: Any = None, clock: Any = time.monotonic) -> Any:
    choice = told or Told()
    return build_schedule(
        ModelScheduler.upstream_schedule,
        enabled=enabled,
        logger=LOGGER,
        choice=lambda depth: choice,
        clock=clock,
    )


def test_a_burst_is_spread_and_no_request_has_two_steps_in_flight() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    for n in range(9):
        scheduler.add(f"r{n}")
    queue: list[Any] = []
    sizes = []
    for _ in range(30):
        output = schedule(scheduler)
        sizes.append(len(output.num_scheduled_tokens))
        assert all(r.num_output_placeholders <= 1 for r in scheduler.running)
        queue.append(output)
        if len(queue) == 3:
            scheduler.processed(queue.pop(0))
    assert sizes[6:] == [3] * 24


def test_a_request_with_a_token_in_flight_waits_however_many_steps_pass() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    scheduler.add("a")
    first = schedule(scheduler)
    assert list(first.num_scheduled_tokens) == ["a"]
    for _ in range(10):
        assert schedule(scheduler).num_scheduled_tokens == {}
    scheduler.processed(first)
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a"]


def test_a_request_is_not_in_two_steps_in_a_row() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    scheduler.add("a")
    scheduler.processed(schedule(scheduler))
    assert schedule(scheduler).num_scheduled_tokens == {}
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a"]


def test_chunks_of_a_prefill_follow_each_other() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    scheduler.add("long", prompt=20)
    assert [schedule(scheduler).num_scheduled_tokens.get("long", 0) for _ in range(4)] == [8, 8, 4, 0]


def test_breaking_the_rule_is_no_silent_fault() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    scheduler.add("a")
    schedule(scheduler)
    scheduler.ignores_eligibility = True
    with pytest.raises(PhaseError, match="request a was scheduled with a token in flight"):
        schedule(scheduler)


def test_workers_are_told_and_get_the_output_only() -> None:
    scheduler = ModelScheduler()
    scheduler.add("a")
    output = patched()(scheduler)
    assert getattr(output, IDS_ARE_ON_THE_CPU) is True
    assert output.scheduled_cached_reqs.all_token_ids == {"a": [4, 5]}


def test_off_leaves_everything_to_upstream() -> None:
    scheduler, schedule = ModelScheduler(), patched(enabled=False)
    scheduler.add("a")
    for _ in range(3):
        output = schedule(scheduler)
        assert list(output.num_scheduled_tokens) == ["a"]
        assert not hasattr(output, IDS_ARE_ON_THE_CPU)
        assert output.scheduled_cached_reqs.all_token_ids == {"a": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: setattr(s.parallel_config, "pipeline_parallel_size", 1), "one pipeline stage"),
        (lambda s: setattr(s, "use_v2_model_runner", True), "V2 model runner"),
        (lambda s: setattr(s, "num_spec_tokens", 2), "several tokens"),
        (lambda s: setattr(s, "num_sampled_tokens_per_step", 0), "several tokens"),
        (lambda s: setattr(s, "connector", object()), "KV connector"),
        (lambda s: setattr(s.vllm_config.model_config, "runner_type", "pooling"), "pooling"),
        (
            lambda s: setattr(s.parallel_config, "distributed_executor_backend", "external_launcher"),
            "external launcher",
        ),
    ],
)
def test_where_the_rule_does_not_fit_it_stays_out(change: Any, words: str) -> None:
    scheduler = ModelScheduler()
    assert reason_against(scheduler) == ""
    change(scheduler)
    assert words in reason_against(scheduler)
    scheduler.add("a")
    assert not hasattr(patched()(scheduler), IDS_ARE_ON_THE_CPU)


def test_a_wait_that_somebody_else_asked_for_stays() -> None:
    scheduler, schedule = ModelScheduler(), patched()
    held = scheduler.add("held")
    scheduler.add("other")
    held.next_decode_eligible_step = 4
    order = []
    for _ in range(5):
        output = schedule(scheduler)
        order += output.num_scheduled_tokens
        scheduler.processed(output)
    assert order == ["other", "other", "held", "other"]


def test_not_spread_the_scheduler_is_left_alone() -> None:
    scheduler, schedule = ModelScheduler(), patched(told=Told(spread=False))
    scheduler.add("a")
    for _ in range(3):
        output = schedule(scheduler)
        assert list(output.num_scheduled_tokens) == ["a"]
        assert not hasattr(output, IDS_ARE_ON_THE_CPU)
        assert output.scheduled_cached_reqs.all_token_ids == {"a": [1, 2, 3, 4, 5]}


def test_a_token_that_was_not_handed_over_is_waited_for_before_a_step_with_hand_off() -> None:
    told = Told()
    scheduler, schedule = ModelScheduler(), patched(told=told)
    scheduler.add("a")
    first = schedule(scheduler)
    assert list(first.num_scheduled_tokens) == ["a"]
    told.answer = False
    scheduler.add("b")
    assert list(schedule(scheduler).num_scheduled_tokens) == ["b"]
    # b's token is handed over, a's is not.
    assert list(schedule(scheduler).num_scheduled_tokens) == ["b"]
    scheduler.processed(first)
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a", "b"]
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a", "b"]


def test_a_token_in_flight_with_hand_off_is_waited_for_before_a_step_without() -> None:
    told = Told(spread=False)
    scheduler, schedule = ModelScheduler(), patched(told=told)
    scheduler.add("a")
    first, second = schedule(scheduler), schedule(scheduler)
    told.answer = True
    scheduler.processed(first)
    assert schedule(scheduler).num_scheduled_tokens == {}
    scheduler.processed(second)
    output = schedule(scheduler)
    assert list(output.num_scheduled_tokens) == ["a"]
    assert getattr(output, IDS_ARE_ON_THE_CPU) is True


def test_breaking_the_rule_after_the_change_is_no_silent_fault_either() -> None:
    told = Told()
    scheduler, schedule = ModelScheduler(), patched(told=told)
    scheduler.add("a")
    schedule(scheduler)
    told.answer = False
    scheduler.ignores_eligibility = True
    with pytest.raises(PhaseError, match="request a was scheduled with a token in flight"):
        schedule(scheduler)


def test_the_choice_hears_how_long_a_request_waits_for_its_tokens() -> None:
    now = [0.0]
    told = Told(spread=False)
    scheduler, schedule = ModelScheduler(), patched(told=told, clock=lambda: now[0])
    scheduler.add("a")
    scheduler.add("b")

    def step(seconds: float) -> None:
        output = schedule(scheduler)
        now[0] += seconds
        scheduler.processed(output)

    for seconds in (5.0, 0.3, 0.4, 0.5):
        step(seconds)
    schedule(scheduler)
    # The prompt's step says nothing, and the first token only when the next one's time begins.
    assert told.seen == [(2, 0.4), (2, 0.5)]


def test_the_first_time_of_spread_decodes_is_that_of_the_step() -> None:
    now = [0.0]
    told = Told(spread=False)
    scheduler, schedule = ModelScheduler(), patched(told=told, clock=lambda: now[0])
    for name in "abc":
        scheduler.add(name)
    scheduler.processed(schedule(scheduler))
    told.answer = True
    assert schedule(scheduler).num_scheduled_tokens == {}
    now[0] = 10.0
    output = schedule(scheduler)
    assert list(output.num_scheduled_tokens) == ["a"]
    now[0] = 10.25
    scheduler.processed(output)
    schedule(scheduler)
    assert told.seen == [(3, 0.25)]


def test_a_watched_request_that_ends_is_forgotten_and_its_id_means_nothing() -> None:
    now = [0.0]
    told = Told(spread=False)
    scheduler, schedule = ModelScheduler(), patched(told=told, clock=lambda: now[0])
    scheduler.add("a")
    for _ in range(3):
        scheduler.processed(schedule(scheduler))
    scheduler.requests.clear()
    again = scheduler.add("a")
    again.num_output_tokens = 90
    now[0] = 99.0
    schedule(scheduler)
    assert all(seconds == 0.0 for _, seconds in told.seen)
