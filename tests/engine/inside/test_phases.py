"""Phases on the real batch queue and scheduler: no worker ever needs an id from another one, no mask waits.

The model of `order/` with workers that hand nothing over: a token that the scheduler has not sent is not
there. Whatever the requests do, every text is that of synchronous scheduling.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.seams import phase_balancing
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
    """Workers that know what the scheduler sends, and nothing else.

    Attributes:
        told: how many steps came with the word that the ids are on the CPU, and how many without.
    """

    told: Counter[bool] = Counter()

    def execute(self, step: Any) -> list[Row]:
        self.told[getattr(step, IDS_ARE_ON_THE_CPU, False)] += 1
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
        self._handed_over = set()
        return sampled


@contextmanager
def phases(*, enabled: bool = True) -> Iterator[None]:
    schedule = phase_balancing.build_schedule(
        AsyncScheduler.schedule, enabled=enabled, logger=logging.getLogger(__name__)
    )
    with (
        patch.object(AsyncScheduler, "schedule", schedule),
        patch.object(order_run, "Workers", SeparateWorkers),
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
