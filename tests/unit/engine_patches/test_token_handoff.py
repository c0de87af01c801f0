"""p045: a request whose token is in flight is scheduled only where the workers hand the token over."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams.token_handoff import build_schedule


@dataclass
class Request:
    request_id: str
    num_output_placeholders: int = 0
    next_decode_eligible_step: int = 0


@dataclass
class Scheduler:
    """The part of vLLM's Scheduler that the seam reads."""

    queue_size: int = 3
    use_v2_model_runner: bool = False
    asynchronous: bool = True
    current_step: int = 10
    prev_step_scheduled_req_ids: set[str] = field(default_factory=set)
    running: list[Request] = field(default_factory=list)

    @property
    def scheduler_config(self) -> Any:
        return SimpleNamespace(async_scheduling=self.asynchronous)

    @property
    def vllm_config(self) -> Any:
        return SimpleNamespace(max_concurrent_batches=self.queue_size)


def upstream_schedule(scheduler: Scheduler, throttle_prefills: bool = False) -> list[str]:
    scheduler.current_step += 1
    return [r.request_id for r in scheduler.running if scheduler.current_step >= r.next_decode_eligible_step]


schedule = build_schedule(upstream_schedule)


def left_out_once(**shape: Any) -> Scheduler:
    """Return a scheduler whose request `late` was left out of the preceding step, its token in flight."""
    return Scheduler(
        prev_step_scheduled_req_ids={"here"},
        running=[Request("here", 1), Request("late", 1), Request("known", 0)],
        **shape,
    )


def test_waits_until_its_token_was_processed() -> None:
    scheduler = left_out_once()
    assert schedule(scheduler) == ["here", "known"]
    assert schedule(scheduler, throttle_prefills=True) == ["here", "known"]
    scheduler.running[1].num_output_placeholders = 0
    assert schedule(scheduler) == ["here", "late", "known"]


def test_a_later_step_that_something_else_asked_for_stays() -> None:
    scheduler = left_out_once()
    scheduler.running[1].next_decode_eligible_step = 20
    schedule(scheduler)
    assert scheduler.running[1].next_decode_eligible_step == 20


@pytest.mark.parametrize(
    "shape", [{"queue_size": 2}, {"use_v2_model_runner": True}, {"asynchronous": False}], ids=str
)
def test_leaves_engines_alone_where_the_token_is_always_there(shape: dict[str, Any]) -> None:
    assert schedule(left_out_once(**shape)) == ["here", "late", "known"]
