"""Requests without a constraint in mixed batches: their rows allow everything, always written, in any
order."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.utils import apply_grammar_bitmask

from tests.engine.inside.closed.world import END, SCHEMA, VOCABULARY, World, allowed, is_open

WORDS = VOCABULARY // 32
MANY = 140


@st.composite
def batches(draw: Any) -> list[tuple[bool, int]]:
    """Batches: whether a request has a constraint, and its number of drafts."""
    return list(draw(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)))


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_only_rows_of_constrained_requests_are_masked(
    batch: list[tuple[bool, int]], seed: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    names = [f"r{n}" for n in range(len(batch))]
    drafts = {name: [-1] * length for name, (_, length) in zip(names, batch, strict=True) if length}
    guided = [name for name, (constrained, _) in zip(names, batch, strict=True) if constrained]
    random.Random(seed).shuffle(guided)  # noqa: S311 - a test's choices
    rows = {
        name: rng.integers(-(2**31), 2**31, (1 + len(drafts.get(name, ())), WORDS)).astype(np.int32)
        for name in guided
    }
    logits = torch.from_numpy(rng.normal(size=(len(batch) + sum(map(len, drafts.values())), VOCABULARY)))
    logits = logits.to(dtype)
    before = logits.clone()
    poison_free_memory(logits.shape[0])
    mask = np.concatenate([rows[name] for name in guided]) if guided else np.empty((0, WORDS), np.int32)
    apply_grammar_bitmask(
        SimpleNamespace(scheduled_spec_decode_tokens=drafts),
        GrammarOutput(guided, mask),
        SimpleNamespace(req_ids=names),
        logits,
    )
    start = 0
    for name, (_, length) in zip(names, batch, strict=True):
        for offset in range(1 + length):
            expected = before[start + offset].clone()
            if name in rows:
                bits = np.unpackbits(rows[name][offset].view(np.uint8), bitorder="little").astype(bool)
                expected[torch.from_numpy(~bits)] = -float("inf")
            assert torch.equal(logits[start + offset], expected), (name, offset)
        start += 1 + length


def poison_free_memory(rows: int) -> None:
    """Leave blocks that forbid everything where the next buffer of that size may be made."""
    for _ in range(4):
        torch.zeros((rows, WORDS), dtype=torch.int32)
        np.zeros((rows, WORDS), dtype=np.int32)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("requests", [6, MANY], ids=["on the loop", "in the pool"])
@pytest.mark.parametrize("poison", [0, -1, 0x5A5A5A5A])
def test_stale_rows_of_the_buffer_are_overwritten(world: World, requests: int, poison: int) -> None:
    """Every third grammar has ended: its row must be written too, and allow everything."""
    made = {f"r{n}": world.make(f"r{n}", {"const": True} if n % 3 == 0 else SCHEMA) for n in range(requests)}
    for name in [n for n in made if int(n[1:]) % 3 == 0]:
        assert finish(made[name].structured_output_request.grammar, world)
    names = list(made)
    random.Random(requests).shuffle(names)  # noqa: S311 - a test's choices
    # The class's method, so that upstream's rule of 128 rows decides and not p043's.
    fill = StructuredOutputManager.grammar_bitmask
    world.manager.fill_bitmask_parallel_threshold = 128
    fill(world.manager, made, names, {})
    world.manager._grammar_bitmask.fill_(poison)
    mask = fill(world.manager, made, names, {})
    own = torch.empty((1, WORDS), dtype=torch.int32)
    for name, row in zip(names, mask, strict=True):
        grammar = made[name].structured_output_request.grammar
        if grammar.is_terminated():
            assert is_open(row), name
        else:
            grammar.fill_bitmask(own, 0)
            assert (allowed(row) == allowed(own[0].numpy())).all(), name
            assert not is_open(row), name


def finish(grammar: Any, world: World) -> bool:
    """Take a grammar to its end and return whether it says so."""
    row = torch.empty((1, WORDS), dtype=torch.int32)
    for _ in range(20):
        grammar.fill_bitmask(row, 0)
        token = world.draw(row[0].numpy())
        assert grammar.accept_tokens("x", [token])
        if token == END:
            break
    return bool(grammar.is_terminated())


def test_every_step_of_a_mixed_run_masks_the_constrained_rows_only() -> None:
    """The scheduler's mask names the constrained requests of the step, one row each, and no other."""
    world = World(seed=3)
    for number in range(24):
        world.add(f"r{number}", SCHEMA if number % 3 else None, prompt=1 + number * 7 % 40, max_tokens=50)
    seen = []
    build = world.scheduler.get_grammar_bitmask

    def checked(scheduler_output: Any) -> Any:
        output = build(scheduler_output)
        if output is not None:
            assert len(output.grammar_bitmask) == len(output.structured_output_request_ids)
            assert not any(int(name[1:]) % 3 == 0 for name in output.structured_output_request_ids)
            assert not any(is_open(row) for row in output.grammar_bitmask)
            seen.append(len(output.structured_output_request_ids))
        return output

    world.scheduler.get_grammar_bitmask = checked
    world.run()
    assert world.rejects == 0
    assert max(seen) == 16
    assert all(len(world.records[f"r{n}"].tokens) == 50 for n in range(0, 24, 3))
