"""What hypothesis chooses: the shape of an engine, the requests that it gets, and what happens meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.engine.inside.order.tokens import Answer

MAX_MODEL_LENGTH = 64
MIN_BLOCKS = MAX_MODEL_LENGTH // 4 + 1
"""One request of full length has to fit, and one block is kept by the block pool."""

LONGEST_PROMPT = 40
LONGEST_ANSWER = 20


@dataclass(frozen=True)
class Shape:
    """An engine.

    Attributes:
        stages: pipeline stages.
        v2: queue rule and token hand-over of the V2 runner, otherwise those of V1.
        draft_tokens: speculative window; 0 without speculation.
        budget: tokens of one step (`max_num_batched_tokens`).
        blocks: KV cache blocks of 4 tokens; few of them force preemptions. Half as many of 16 for a hybrid.
        running: most requests at a time.
        in_process: the engine core returns outputs and has no output queue.
        hybrid: has a Mamba layer whose state is cached at block boundaries (cache mode "align"), with blocks
            larger than most steps' budget.
    """

    stages: int
    v2: bool
    draft_tokens: int
    budget: int
    blocks: int
    running: int
    in_process: bool
    hybrid: bool = False


@dataclass(frozen=True)
class Abort:
    """A client that goes away.

    Attributes:
        after: output tokens that it gets before it goes.
        while_waiting: the abort arrives while the engine core waits for a step's result, so it takes effect
            inside whatever batch is processed next; otherwise between two steps.
    """

    after: int
    while_waiting: bool


@dataclass(frozen=True)
class Plan:
    """One request.

    Attributes:
        answer: what it is going to say.
        arrival: step before which it arrives.
        compile_steps: steps that its grammar takes to compile.
        compile_fails: its grammar does not compile.
        abort: when its client goes away, if it does.
    """

    answer: Answer
    arrival: int
    compile_steps: int
    compile_fails: bool
    abort: Abort | None


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        shape: the engine.
        plans: the requests, in the order of arrival.
        holds: (step, request): it is left out of that step, as when an encoder's budget or a block-aligned
            chunk leaves no room for it. The others go on: a step of plain requests only, for example.
        resets: steps before which the cache is reset and everything that runs starts anew.
    """

    shape: Shape
    plans: tuple[Plan, ...]
    holds: frozenset[tuple[int, int]] = frozenset()
    resets: frozenset[int] = frozenset()


def shapes(stages: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[Shape]:
    """Return engines: one to four stages, both rules, with and without speculation, tight and roomy."""
    return st.builds(
        Shape,
        stages=st.integers(1, 4) if stages is None else stages,
        v2=st.booleans(),
        draft_tokens=st.sampled_from((0, 0, 1, 3)),
        budget=st.sampled_from((8, 12, 64)),
        blocks=st.sampled_from((MIN_BLOCKS, MIN_BLOCKS + 3, 100)),
        running=st.sampled_from((2, 4, 8)),
        in_process=st.booleans(),
        hybrid=st.sampled_from((False, False, True)),
    )


def _answers() -> st.SearchStrategy[Answer]:
    seed = st.integers(0, 999)
    prompt = st.integers(1, 14) | st.integers(1, 14) | st.integers(15, LONGEST_PROMPT)
    plain = st.builds(Answer, seed=seed, prompt=prompt, length=st.just(0), limit=st.integers(1, 14))
    structured = st.builds(
        Answer,
        seed=seed,
        prompt=prompt,
        length=st.integers(1, 12),
        limit=st.sampled_from((3, LONGEST_ANSWER)),
    )
    return structured | structured | plain


def _plans() -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        answer=_answers(),
        arrival=st.integers(0, 12),
        compile_steps=st.integers(0, 6),
        compile_fails=st.sampled_from((False,) * 9 + (True,)),
        abort=st.none() | st.none() | st.builds(Abort, after=st.integers(0, 8), while_waiting=st.booleans()),
    )


def scenarios(shape: st.SearchStrategy[Shape] | None = None) -> st.SearchStrategy[Scenario]:
    """Return runs of one to seven requests."""

    def ordered(plans: Sequence[Plan]) -> tuple[Plan, ...]:
        return tuple(sorted(plans, key=lambda plan: plan.arrival))

    return st.builds(
        Scenario,
        shape=shapes() if shape is None else shape,
        plans=st.lists(_plans(), min_size=1, max_size=7).map(ordered),
        holds=st.frozensets(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=6),
        resets=st.just(frozenset[int]()) | st.frozensets(st.integers(1, 40), max_size=2),
    )
