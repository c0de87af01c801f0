"""Which steps the ledger keeps for a scheduler: the ones whose tokens will be given to a grammar."""

import contextlib
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams import core_telemetry
from structuredllm_engine_patches.seams.ledger_hook import attach_ledger, step_key
from structuredllm_engine_patches.telemetry.metrics import STALE_MASKS
from structuredllm_engine_patches.telemetry.observation import Observation


@dataclass
class Request:
    use_structured_output: bool = True
    is_prefill_chunk: bool = False
    drop_stale_output: bool = False
    num_stale_output_tokens: int = 1
    async_tokens_to_discard: int = 0
    num_preemptions: int = 0


@dataclass
class Step:
    """Stands in for vLLM's SchedulerOutput."""

    ids: tuple[str, ...]
    new: tuple[str, ...] = ()
    resumed: frozenset[str] = frozenset()
    has_structured_output_requests: bool = True
    num_scheduled_tokens: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_scheduled_tokens = dict.fromkeys(self.ids, 1)
        self.scheduled_new_reqs = [SimpleNamespace(req_id=name) for name in self.new]
        self.scheduled_cached_reqs = SimpleNamespace(resumed_req_ids=self.resumed)


class Engine:
    """A scheduler that is told what it schedules, watched as in production."""

    def __init__(self, *names: str) -> None:
        self.observation = Observation()
        self.queue: list[Step] = []
        self.scheduler: Any = SimpleNamespace(
            requests={name: Request() for name in names},
            schedule=lambda step: step,
            update_from_output=lambda step, output: {},
            get_grammar_bitmask=lambda step: "mask",
        )
        self.ledger = attach_ledger(self.scheduler)
        core_telemetry._watch_masks(self.scheduler, self.observation, logging.getLogger("test"), lambda: 0.0)

    def run(self, *ids: str, new: tuple[str, ...] = (), resumed: tuple[str, ...] = ()) -> Step:
        """Schedule a step and build its masks."""
        step = Step(ids, new, frozenset(resumed))
        # Alive until it is processed, as in the batch queue: the ledger knows it by its identity.
        self.queue.append(step)
        self.scheduler.schedule(step)
        self.scheduler.get_grammar_bitmask(step)
        return step

    @property
    def stale(self) -> float:
        return self.observation.value(STALE_MASKS)


def test_a_reused_id_is_not_behind_the_steps_of_its_predecessor() -> None:
    engine = Engine("a")
    engine.run("a", new=("a",))
    engine.scheduler.requests["a"] = Request()
    engine.run("a", new=("a",))
    assert engine.stale == 0


@pytest.mark.parametrize(
    "marks", [{"drop_stale_output": True}, {"async_tokens_to_discard": 1}], ids=["0.32", "0.22"]
)
def test_what_is_thrown_away_after_a_reset_is_not_waited_for(marks: dict[str, Any]) -> None:
    engine = Engine("a", "b")
    dropped = engine.run("a", "b", new=("a", "b"))
    engine.scheduler.requests["a"] = Request(num_preemptions=1, **marks)
    engine.run("a", resumed=("a",))
    assert engine.stale == 0
    assert engine.ledger.requests_of(step_key(dropped)) == {"b"}


def test_a_step_after_the_reset_counts_while_older_output_is_still_thrown_away() -> None:
    engine = Engine("a")
    engine.run("a", new=("a",))
    engine.scheduler.requests["a"].drop_stale_output = True
    engine.scheduler.requests["a"].num_preemptions = 1
    engine.run("a", resumed=("a",))
    engine.run("a")
    assert engine.stale == 1


def test_a_request_that_resumes_after_a_preemption_keeps_its_steps() -> None:
    engine = Engine("a")
    engine.run("a", new=("a",))
    engine.scheduler.requests["a"].num_preemptions = 1
    engine.run("a", resumed=("a",))
    assert engine.stale == 1


def test_nothing_is_left_when_all_was_processed() -> None:
    engine = Engine("a", "b")
    steps = [engine.run("a", "b", new=("a", "b")), engine.run("a", new=("a",)), engine.run("b")]
    for step in steps:
        engine.scheduler.update_from_output(step, None)
    assert len(engine.ledger) == 0


def test_a_step_whose_processing_fails_is_not_waited_for() -> None:
    engine = Engine("a")
    step = engine.run("a")

    def fail(step: Step, output: Any) -> Any:
        raise ValueError("broken")

    engine.scheduler = SimpleNamespace(
        requests=engine.scheduler.requests, schedule=lambda s: s, update_from_output=fail
    )
    ledger = attach_ledger(engine.scheduler)
    engine.scheduler.schedule(step)
    with contextlib.suppress(ValueError):
        engine.scheduler.update_from_output(step, None)
    assert len(ledger) == 0
