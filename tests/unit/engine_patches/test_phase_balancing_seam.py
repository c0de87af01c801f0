"""The seam of the phases on a stand-in for the scheduler: who may go, what is refused, what is sent."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.seams.phase_balancing import build_schedule, reason_against
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU

LOGGER = logging.getLogger("test")


class FakeScheduler:
    """Schedules every running request that its eligible step allows, as upstream's loop does."""

    def __init__(self, depth: int = 3) -> None:
        self.parallel_config = SimpleNamespace(
            pipeline_parallel_size=depth, distributed_executor_backend="mp"
        )
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(runner_type="generate"))
        self.use_v2_model_runner = False
        self.num_spec_tokens = 0
        self.num_sampled_tokens_per_step = 1
        self.connector: Any = None
        self.current_step = 0
        self.prev_step_scheduled_req_ids: set[str] = set()
        self.running: list[Any] = []
        self.ignores_eligibility = False

    @property
    def requests(self) -> dict[str, Any]:
        return {r.request_id: r for r in self.running}

    def add(self, name: str, *, prompt: int = 1) -> Any:
        request = SimpleNamespace(
            request_id=name,
            num_output_placeholders=0,
            num_tokens=prompt,
            num_computed_tokens=0,
            next_decode_eligible_step=0,
        )
        self.running.append(request)
        return request

    def upstream_schedule(self, chunk: int = 8) -> Any:
        self.current_step += 1
        scheduled: dict[str, int] = {}
        for request in self.running:
            if self.current_step < request.next_decode_eligible_step and not self.ignores_eligibility:
                continue
            tokens = min(
                chunk, request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            )
            if tokens == 0:
                continue
            scheduled[request.request_id] = tokens
            request.num_computed_tokens += tokens
            if request.num_computed_tokens == request.num_tokens + request.num_output_placeholders:
                request.num_output_placeholders += 1
        self.prev_step_scheduled_req_ids.clear()
        self.prev_step_scheduled_req_ids.update(scheduled)
        cached = SimpleNamespace(
            req_ids=list(scheduled),
            num_output_tokens=[2 for _ in scheduled],
            all_token_ids={name: [1, 2, 3, 4, 5] for name in scheduled},
        )
        return SimpleNamespace(num_scheduled_tokens=scheduled, scheduled_cached_reqs=cached)

    def processed(self, output: Any) -> None:
        for request in self.running:
            if request.request_id in output.num_scheduled_tokens and request.num_output_placeholders:
                request.num_output_placeholders -= 1
                request.num_tokens += 1


def patched(*, enabled: bool = True) -> Any:
    return build_schedule(FakeScheduler.upstream_schedule, enabled=enabled, logger=LOGGER)


def test_a_burst_is_spread_and_no_request_has_two_steps_in_flight() -> None:
    scheduler, schedule = FakeScheduler(), patched()
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
    scheduler, schedule = FakeScheduler(), patched()
    scheduler.add("a")
    first = schedule(scheduler)
    assert list(first.num_scheduled_tokens) == ["a"]
    for _ in range(10):
        assert schedule(scheduler).num_scheduled_tokens == {}
    scheduler.processed(first)
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a"]


def test_a_request_is_not_in_two_steps_in_a_row() -> None:
    scheduler, schedule = FakeScheduler(), patched()
    scheduler.add("a")
    scheduler.processed(schedule(scheduler))
    assert schedule(scheduler).num_scheduled_tokens == {}
    assert list(schedule(scheduler).num_scheduled_tokens) == ["a"]


def test_chunks_of_a_prefill_follow_each_other() -> None:
    scheduler, schedule = FakeScheduler(), patched()
    scheduler.add("long", prompt=20)
    assert [schedule(scheduler).num_scheduled_tokens.get("long", 0) for _ in range(4)] == [8, 8, 4, 0]


def test_breaking_the_rule_is_no_silent_fault() -> None:
    scheduler, schedule = FakeScheduler(), patched()
    scheduler.add("a")
    schedule(scheduler)
    scheduler.ignores_eligibility = True
    with pytest.raises(PhaseError, match="request a was scheduled with a token in flight"):
        schedule(scheduler)


def test_workers_are_told_and_get_the_output_only() -> None:
    scheduler = FakeScheduler()
    scheduler.add("a")
    output = patched()(scheduler)
    assert getattr(output, IDS_ARE_ON_THE_CPU) is True
    assert output.scheduled_cached_reqs.all_token_ids == {"a": [4, 5]}


def test_off_leaves_everything_to_upstream() -> None:
    scheduler, schedule = FakeScheduler(), patched(enabled=False)
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
    scheduler = FakeScheduler()
    assert reason_against(scheduler) == ""
    change(scheduler)
    assert words in reason_against(scheduler)
    scheduler.add("a")
    assert not hasattr(patched()(scheduler), IDS_ARE_ON_THE_CPU)


def test_a_wait_that_somebody_else_asked_for_stays() -> None:
    scheduler, schedule = FakeScheduler(), patched()
    held = scheduler.add("held")
    scheduler.add("other")
    held.next_decode_eligible_step = 4
    order = []
    for _ in range(5):
        output = schedule(scheduler)
        order += output.num_scheduled_tokens
        scheduler.processed(output)
    assert order == ["other", "other", "held", "other"]
