"""The plan of the phases: equal shares, nobody starves, and a pipeline that fills at once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_engine_patches.guided.phases import PhasePlan


def test_a_burst_is_cut_into_equal_shares() -> None:
    plan = PhasePlan(3)
    names = [f"r{n}" for n in range(48)]
    first = plan.choose(names, 0)
    second = plan.choose([n for n in names if n not in first], 16)
    third = plan.choose([n for n in names if n not in first | second], 32)
    assert [len(first), len(second), len(third)] == [16, 16, 16]
    assert first | second | third == set(names)


def test_few_requests_all_go_one_a_step() -> None:
    plan = PhasePlan(4)
    assert plan.choose(["a", "b"], 0) == {"a"}
    assert plan.choose(["b"], 1) == {"b"}
    assert plan.choose([], 2) == frozenset()


def test_one_stage_takes_all() -> None:
    assert PhasePlan(1).choose(["a", "b", "c"], 0) == {"a", "b", "c"}


def test_the_longest_waiting_go_first_whatever_the_order() -> None:
    plan = PhasePlan(2)
    assert plan.choose(["a", "b"], 0) == {"a"}
    # b has waited since the call before; a and c are new here, in front of it in the scheduler's order.
    assert plan.choose(["c", "a", "b"], 0) == {"a", "b"}
    assert plan.choose(["d", "e", "c"], 1) == {"c", "d"}


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    plan = PhasePlan(2)
    for n in range(100):
        plan.choose([f"r{n}", f"s{n}"], 0)
    assert len(plan._ready_since) == 2


@settings(max_examples=60, deadline=None)
@given(
    depth=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    leave=st.randoms(use_true_random=False),
)
def test_pipeline_stays_balanced_and_nobody_starves(depth: int, arrivals: list[int], leave) -> None:  # type: ignore[no-untyped-def]
    """A queue of `depth` steps as the engine core has it; requests come in bursts and leave at random."""
    plan = PhasePlan(depth)
    queue: list[list[str]] = []
    alive: list[str] = []
    last_decoded: dict[str, int] = {}
    number = 0
    for step in range(200):
        for _ in range(arrivals[step] if step < len(arrivals) else 0):
            number += 1
            alive.append(f"r{number}")
            last_decoded[f"r{number}"] = step
        if len(queue) == depth:
            for name in queue.pop(0):
                if step < len(arrivals) and name in alive and leave.random() < 0.2:
                    alive.remove(name)
        flying = {name for entry in queue for name in entry}
        ready = [name for name in alive if name not in flying]
        chosen = plan.choose(ready, len(alive) - len(ready))
        assert chosen <= set(ready)
        assert len(chosen) <= plan.share(len(alive))
        for name in chosen:
            last_decoded[name] = step
        queue.append(sorted(chosen))
    # With the population constant for long enough each step has its share and each request its turn.
    assert all(step - last_decoded[name] <= depth for name in alive)
    if len(alive) >= depth:
        sizes = [len(entry) for entry in queue]
        assert min(sizes) >= len(alive) - (depth - 1) * plan.share(len(alive))
        assert sum(sizes) == len(alive)
