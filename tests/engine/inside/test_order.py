"""Order: no mask before every earlier token was accepted, whatever happens around it; and four wrong cures.

The real batch queue, scheduler and structured output manager run on a fake executor (`order/`). The number
of examples is STRUCTUREDLLM_ORDER_EXAMPLES (default 300, always the same ones; with the variable set they
are chosen anew at each run).
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.engine import core

from tests.engine.inside.order import mutations
from tests.engine.inside.order.run import OrderFault, Run
from tests.engine.inside.order.scenario import Plan, Scenario, Shape, scenarios, shapes
from tests.engine.inside.order.tokens import Answer

EXAMPLES = "STRUCTUREDLLM_ORDER_EXAMPLES"
MOST_EXAMPLES_TO_FIND_A_MUTATION = 300

BASE = settings(
    database=None,
    deadline=None,
    derandomize=EXAMPLES not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MORE_THAN_TWO_STAGES = scenarios(shapes(st.integers(3, 4)))


@pytest.fixture(autouse=True, scope="module")
def quiet_engine() -> Iterator[None]:
    """An engine core that fails logs its whole input and configuration."""
    with patch.object(core, "dump_engine_exception", lambda *_: None):
        yield


def test_every_mask_is_built_in_order() -> None:
    reached: Counter[str] = Counter()

    @settings(BASE, max_examples=int(os.environ.get(EXAMPLES, "300")))
    @given(scenario=scenarios())
    def in_order(scenario: Scenario) -> None:
        run = Run(scenario)
        run.play()
        reached.update(run.counts)

    in_order()
    print(dict(reached))
    # A model that never gets there proves nothing.
    for event in (
        "masks",
        "deferred",
        "drained batches",
        "empty steps",
        "preemptions",
        "aborted between steps",
        "aborted while waiting",
        "held",
        "reset",
    ):
        assert reached[event] > 0, event


@settings(BASE, max_examples=30)
@given(scenario=scenarios(shapes(st.just(1))))
def test_the_reference_is_what_synchronous_scheduling_says(scenario: Scenario) -> None:
    Run(scenario, synchronous=True).play()


@pytest.mark.parametrize(
    ("mutation", "chosen", "found"),
    [
        pytest.param(mutations.drain_removed, MORE_THAN_TWO_STAGES, "mask after", id="drain removed"),
        pytest.param(
            mutations.spacing_too_small, MORE_THAN_TWO_STAGES, "mask after", id="spacing alone too small"
        ),
        pytest.param(
            partial(mutations.spacing_alone, less_than_queue=1),
            MORE_THAN_TWO_STAGES,
            "not handed over",
            id="spacing alone right for the masks",
        ),
        pytest.param(
            mutations.placeholders_counted, scenarios(), "was drained and holds", id="placeholders counted"
        ),
        pytest.param(mutations.outputs_out_of_order, MORE_THAN_TWO_STAGES, "got", id="outputs out of order"),
        pytest.param(
            mutations.handoff_unguarded, MORE_THAN_TWO_STAGES, "not handed over", id="hand-off unguarded"
        ),
    ],
)
def test_finds_a_wrong_cure(
    mutation: mutations.Mutation, chosen: st.SearchStrategy[Scenario], found: str
) -> None:
    number, fault = first_fault(mutation, chosen)
    print(f"found by example {number}: {fault}")
    assert re.search(found, str(fault))


SHORT = Answer(seed=1, prompt=1, length=0, limit=14)


@pytest.mark.parametrize("structured", [False, True], ids=["plain", "structured"])
def test_a_hybrid_models_prefill_leaves_others_out_and_they_keep_their_text(structured: bool) -> None:
    """A chunk that ends at a block boundary lets two requests in, the next one leaves no room for them."""
    late = replace(SHORT, length=9 if structured else 0)
    plans = [
        Plan(answer, arrival, compile_steps=0, compile_fails=False, abort=None)
        for answer, arrival in (
            (SHORT, 0),
            (Answer(seed=2, prompt=40, length=0, limit=2), 0),
            (replace(late, seed=3), 1),
            (replace(late, seed=4), 1),
        )
    ]
    shape = Shape(
        stages=3, v2=False, draft_tokens=0, budget=8, blocks=100, running=8, in_process=False, hybrid=True
    )
    scenario = Scenario(shape, tuple(plans))
    with mutations.handoff_unguarded(), pytest.raises(OrderFault, match="not handed over"):
        Run(scenario).play()
    Run(scenario).play()


def first_fault(mutation: mutations.Mutation, chosen: st.SearchStrategy[Scenario]) -> tuple[int, OrderFault]:
    """Return which example finds a mutation, and what it finds."""
    tried = 0

    @settings(
        BASE,
        max_examples=MOST_EXAMPLES_TO_FIND_A_MUTATION,
        phases=[Phase.generate],
        derandomize=True,
        report_multiple_bugs=False,
    )
    @given(scenario=chosen)
    def search(scenario: Scenario) -> None:
        nonlocal tried
        tried += 1
        Run(scenario).play()

    with mutation():
        try:
            search()
        except OrderFault as fault:
            return tried, fault
    pytest.fail(f"{tried} examples did not find the mutation")
