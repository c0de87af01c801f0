"""Phases on the real batch queue and scheduler: no worker ever needs an id from another one, no mask waits.

The model of `order/` with workers that hand nothing over: a token that the scheduler has not sent is not
there. Whatever the requests do, every text is that of synchronous scheduling.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.guided.phase_choice import AlwaysSpread, Choice
from structuredllm_engine_patches.seams import phase_balancing, token_handoff
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU
from tests.engine.inside.order import run as order_run
from tests.engine.inside.order.run import OrderFault, Run
from tests.engine.inside.order.scenario import MIN_BLOCKS, Scenario, Shape, scenarios
from tests.engine.inside.order.workers import Row, Workers

BASE = settings(
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class SeparateWorkers(Workers):
    """Workers that know what the scheduler sends, and hand nothing over after steps that say so.

    Attributes:
        told: how many steps came with the word that the ids are on the CPU, and how many without.
    """

    told: Counter[bool] = Counter()
    never_hand_over = True

    _separate = False

    def execute(self, step: Any) -> list[Row]:
        self._separate = getattr(step, IDS_ARE_ON_THE_CPU, False)
        self.told[self._separate] += step.total_num_scheduled_tokens > 0
        tokens = step.scheduled_cached_reqs.all_token_ids
        for request_id, outputs in zip(
            step.scheduled_cached_reqs.req_ids, step.scheduled_cached_reqs.num_output_tokens, strict=True
        ):
            if request_id in tokens and len(tokens[request_id]) == outputs:
                # The worker reads outputs from the end; the model looks behind the prompt.
                tokens[request_id] = [*[0] * self.answers[request_id].prompt, *tokens[request_id]]
        return super().execute(step)

    def sample(self, rows: Sequence[Row], grammar: Any) -> list[list[int]]:
        sampled = super().sample(rows, grammar)
        if self._separate or self.never_hand_over:
            self._handed_over = set()
        return sampled


class Changing:
    """Spreads and gathers in turn, for 1 to 7 calls each."""

    def __init__(self, depth: int) -> None:
        self._turns = itertools.cycle((1, 4, 2, 7, 3, 1, 5, 6))
        self._left = 2
        self._spread = False

    def spread(self, decodes: int) -> bool:
        self._left -= 1
        if self._left <= 0:
            self._left = next(self._turns)
            self._spread = not self._spread
        return self._spread

    def observe(self, decodes: int, seconds: float) -> None:
        pass


@contextmanager
def phases(
    *, enabled: bool = True, choice: Callable[[int], Choice] = AlwaysSpread, handing_over: bool = False
) -> Iterator[None]:
    schedule = phase_balancing.build_schedule(
        token_handoff.build_schedule(AsyncScheduler.schedule),
        enabled=enabled,
        logger=logging.getLogger(__name__),
        choice=choice,
    )
    with (
        patch.object(AsyncScheduler, "schedule", schedule),
        patch.object(order_run, "Workers", SeparateWorkers),
        patch.object(SeparateWorkers, "never_hand_over", not handing_over),
    ):
        yield


def pipelines(stages: st.SearchStrategy[int]) -> st.SearchStrategy[Scenario]:
    shapes = st.builds(
        Shape,
        stages=stages,
        v2=st.just(False),
        draft_tokens=st.just(0),
        budget=st.sampled_from((8, 12, 64)),
        blocks=st.sampled_from((MIN_BLOCKS, MIN_BLOCKS + 3, 100)),
        running=st.sampled_from((2, 4, 8)),
        in_process=st.booleans(),
        hybrid=st.booleans(),
    )
    return scenarios(shapes)


def test_every_text_is_right_and_no_mask_waits() -> None:
    reached: Counter[str] = Counter()
    SeparateWorkers.told = Counter()

    @settings(BASE, max_examples=60)
    @given(scenario=pipelines(st.integers(2, 4)))
    def in_order(scenario: Scenario) -> None:
        run = Run(scenario)
        run.play()
        reached.update(run.counts)

    with phases():
        in_order()
    print(dict(reached))
    assert SeparateWorkers.told[False] == 0
    assert reached["deferred"] == reached["drained batches"] == 0
    for event in ("masks", "empty steps", "preemptions", "aborted between steps", "aborted while waiting"):
        assert reached[event] > 0, event


def test_every_text_is_right_while_decodes_are_spread_and_gathered_in_turn() -> None:
    reached: Counter[str] = Counter()
    SeparateWorkers.told = Counter()

    @settings(BASE, max_examples=60)
    @given(scenario=pipelines(st.integers(2, 4)))
    def in_order(scenario: Scenario) -> None:
        run = Run(scenario)
        run.play()
        reached.update(run.counts)

    with phases(choice=Changing, handing_over=True):
        in_order()
    print(dict(reached), dict(SeparateWorkers.told))
    assert SeparateWorkers.told[False] > 0
    assert SeparateWorkers.told[True] > 0
    for event in ("masks", "deferred", "drained batches", "preemptions", "aborted between steps"):
        assert reached[event] > 0, event


def test_finds_that_a_gathered_step_takes_a_token_that_was_not_handed_over() -> None:
    with (
        phases(choice=Changing, handing_over=True),
        patch.object(phase_balancing.PhaseBalancer, "_hold_those_apart", lambda self, scheduler: None),
    ):
        assert isinstance(_first_error(), PhaseError | OrderFault)


def test_finds_that_the_rule_is_broken() -> None:
    """The rule's own check is the first that sees it."""
    with phases(), patch.object(phase_balancing, "_hold", lambda request, step: None):
        assert isinstance(_first_error(), PhaseError)


def test_finds_that_the_hand_off_is_missed_without_the_rule() -> None:
    with phases(enabled=False):
        assert "not handed over" in str(_first_error())


def _first_error() -> Exception:
    @settings(BASE, max_examples=60, phases=[Phase.generate], report_multiple_bugs=False)
    @given(scenario=pipelines(st.integers(3, 4)))
    def search(scenario: Scenario) -> None:
        Run(scenario).play()

    with pytest.raises((OrderFault, PhaseError)) as found:
        search()
    return found.value
