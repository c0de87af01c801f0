"""The drain's decision, by example and by a model of the batch queue."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_engine_patches.guided.drain import batches_to_drain
from structuredllm_engine_patches.guided.ledger import StepLedger

Decision = Callable[[Collection[str], Sequence[Collection[str]]], int]


@pytest.mark.parametrize(
    ("waiting", "queued", "expected"),
    [
        ({"a"}, [], 0),
        ({"a"}, [set()], 0),
        (set(), [{"a"}], 0),
        ({"a"}, [{"a"}], 1),
        ({"a"}, [{"a"}, set()], 1),
        ({"a"}, [set(), {"a"}], 2),
        ({"a"}, [{"a"}, {"a"}], 2),
        ({"a", "b"}, [{"b"}, {"c"}, {"a"}, {"c"}], 3),
        ({"a"}, [{"b"}, {"c"}], 0),
    ],
)
def test_drains_up_to_the_newest_batch_that_matters(
    waiting: set[str], queued: list[set[str]], expected: int
) -> None:
    assert batches_to_drain(waiting, queued) == expected


@dataclass
class QueueModel:
    """What vLLM's `step_with_batch_queue` does with steps, nothing else.

    A step is a set of structured request ids (empty: plain requests, prefill chunks or nothing scheduled).
    Every request's grammar must have seen all the request's earlier steps when the mask of a step is built.
    """

    size: int
    decide: Decision
    queue: deque[int] = field(default_factory=deque)
    ledger: StepLedger = field(default_factory=StepLedger)
    processed: list[int] = field(default_factory=list)
    stale: int = 0
    number: int = 0
    sampled: dict[str, list[int]] = field(default_factory=dict)

    def step(self, requests: frozenset[str], anew: frozenset[str] = frozenset()) -> None:
        """Run a step; the requests `anew` start over, what is in flight for them is thrown away."""
        self.number += 1
        for request in anew:
            self.sampled.pop(request, None)
        self.ledger.forget(anew)
        pending = any(self._outstanding(r) for r in requests)
        self.ledger.scheduled(self.number, requests)
        if pending:
            self._pop()
            queued = [self.ledger.requests_of(n) for n in reversed(self.queue)]
            for _ in range(self.decide(self.ledger.requests_of(self.number), queued)):
                self._pop()
        self._build_masks(requests)
        self.queue.appendleft(self.number)
        if not pending and len(self.queue) >= self.size:
            self._pop()

    def _build_masks(self, requests: frozenset[str]) -> None:
        expected = {r for r in requests if self._outstanding(r)}
        # The invariant that runs in production must agree with the model's own book-keeping.
        assert self.ledger.behind(self.number) == expected
        self.stale += len(expected)
        for request in requests:
            self.sampled.setdefault(request, []).append(self.number)

    def _outstanding(self, request: str) -> bool:
        return any(n not in self.processed for n in self.sampled.get(request, []))

    def _pop(self) -> None:
        number = self.queue.pop()
        self.ledger.processed(number)
        self.processed.append(number)


STEPS = st.lists(st.frozensets(st.sampled_from("abc"), max_size=3), max_size=40)
SIZES = st.integers(min_value=2, max_value=6)


def run(size: int, steps: Sequence[frozenset[str]], decide: Decision) -> QueueModel:
    model = QueueModel(size, decide)
    for step in steps:
        model.step(step)
    return model


@settings(max_examples=200, deadline=None)
@given(size=SIZES, steps=STEPS)
def test_no_mask_is_stale_whatever_is_scheduled(size: int, steps: list[frozenset[str]]) -> None:
    model = run(size, steps, batches_to_drain)
    assert model.stale == 0
    assert model.processed == sorted(model.processed)
    assert len(model.queue) < size


@settings(max_examples=200, deadline=None)
@given(size=SIZES, steps=STEPS)
def test_drains_no_more_than_needed(size: int, steps: list[frozenset[str]]) -> None:
    def checked(waiting: Collection[str], queued: Sequence[Collection[str]]) -> int:
        count = batches_to_drain(waiting, queued)
        assert count == 0 or set(waiting) & set(queued[count - 1])
        return count

    run(size, steps, checked)


@settings(max_examples=200, deadline=None)
@given(size=SIZES, steps=STEPS, anew=STEPS)
def test_waits_for_no_step_whose_output_is_thrown_away(
    size: int, steps: list[frozenset[str]], anew: list[frozenset[str]]
) -> None:
    model = QueueModel(size, batches_to_drain)
    for requests, over in zip_longest(steps, anew, fillvalue=frozenset[str]()):
        model.step(requests, over)
        outstanding = {n for numbers in model.sampled.values() for n in numbers} - set(model.processed)
        assert len(model.ledger) == len(outstanding)
    assert model.stale == 0
    while model.queue:
        model._pop()
    assert len(model.ledger) == 0


COLD = [frozenset[str](), frozenset[str](), *[frozenset("a")] * 20]
"""Empty steps while the grammar compiles, then one request decoding."""

MIXED = [
    frozenset("a"),
    frozenset[str](),
    frozenset[str](),
    *[frozenset("a"), frozenset[str]()] * 10,
    *[frozenset("a")] * 9,
]


@pytest.mark.parametrize("steps", [COLD, MIXED])
def test_model_shows_the_fault_without_the_drain(steps: list[frozenset[str]]) -> None:
    assert run(3, steps, lambda waiting, queued: 0).stale > 0
    assert run(3, steps, batches_to_drain).stale == 0


def test_model_shows_that_one_more_batch_is_not_enough() -> None:
    deep = [frozenset[str]()] * 3 + [frozenset("a")] * 20
    assert run(5, deep, lambda w, q: min(1, batches_to_drain(w, q))).stale > 0
    assert run(5, deep, batches_to_drain).stale == 0


def test_two_stages_cannot_show_the_fault() -> None:
    assert run(2, COLD, lambda waiting, queued: 0).stale == 0


def test_ledger_is_bounded_and_forgets_processed_steps() -> None:
    ledger = StepLedger()
    for number in range(1000):
        ledger.scheduled(number, ["a"])
    assert len(ledger) == 256
    for number in range(1000):
        ledger.processed(number)
    assert len(ledger) == 0
    ledger.scheduled(1, [])
    assert len(ledger) == 0
