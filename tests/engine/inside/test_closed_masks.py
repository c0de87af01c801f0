"""Fail closed, in the engine core: no mask row of a structured request is open before its grammar ended."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.seams import mask_rows
from structuredllm_engine_patches.telemetry.metrics import UNVERIFIED_DRAFTS
from tests.engine.inside.closed.world import END, SCHEMA, World, allowed, is_open

DRAFTS = 3
POISON = 0x5A5A5A5A


@pytest.fixture(scope="module")
def world() -> World:
    return World(drafts=DRAFTS)


def legal(world: World, grammar: Any, wanted: int) -> list[int]:
    """Return `wanted` tokens that a grammar takes one after the other (fewer where it ends), and take them
    back."""
    row = torch.empty((1, 64), dtype=torch.int32)
    tokens: list[int] = []
    while len(tokens) < wanted and not grammar.is_terminated():
        grammar.fill_bitmask(row, 0)
        tokens.append(world.draw(row[0].numpy()))
        assert grammar.accept_tokens("x", tokens[-1:])
    if tokens:
        grammar.rollback(len(tokens))
    return tokens


def advanced(world: World, name: str, tokens: int) -> Any:
    """Return a request whose grammar has taken that many tokens (fewer where it would end)."""
    request = world.make(name, SCHEMA)
    grammar = request.structured_output_request.grammar
    for _ in range(tokens):
        step = legal(world, grammar, 1)
        if step == [END]:
            break
        assert grammar.accept_tokens(name, step)
    return request


def build(world: World, requests: dict[str, Any], drafts: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Return the mask rows of each request, made in a poisoned buffer."""
    if world.manager._grammar_bitmask is not None:
        world.manager._grammar_bitmask.fill_(POISON)
    mask = world.manager.grammar_bitmask(requests, list(requests), drafts).copy()
    rows, start = {}, 0
    for name in requests:
        end = start + len(drafts.get(name, ())) + 1
        rows[name] = list(mask[start:end])
        start = end
    assert start == len(mask)
    return rows


@st.composite
def windows(draw: Any) -> list[tuple[int, int, int, bool]]:
    """Batches: tokens before the window, its length, its known drafts, and whether they arrived."""
    window = st.tuples(st.integers(0, 8), st.integers(0, DRAFTS), st.integers(0, DRAFTS), st.booleans())
    return list(draw(st.lists(window, min_size=1, max_size=5)))


@settings(max_examples=60, deadline=None)
@given(windows(), st.integers(0, 10**6))
def test_no_row_is_open(world: World, batch: list[tuple[int, int, int, bool]], seed: int) -> None:
    world.rng.seed(seed)
    requests, drafts = {}, {}
    for number, (before, length, known, arrived) in enumerate(batch):
        name = f"r{number}"
        requests[name] = advanced(world, name, before)
        grammar = requests[name].structured_output_request.grammar
        taken = legal(world, grammar, min(known, length)) if arrived else []
        if length:
            drafts[name] = taken + [-1] * (length - len(taken))
    for name, rows in build(world, requests, drafts).items():
        grammar = requests[name].structured_output_request.grammar
        processed = grammar.num_processed_tokens
        expect_closed(grammar, rows, drafts.get(name, []))
        assert grammar.num_processed_tokens == processed


def expect_closed(grammar: Any, rows: list[Any], drafts: list[int]) -> None:
    """Walk a window with the grammar itself: each row is what it allows there, never open before its end."""
    taken = 0
    own = torch.empty((1, 64), dtype=torch.int32)
    for position, row in enumerate(rows):
        if grammar.is_terminated():
            break
        assert not is_open(row), position
        grammar.fill_bitmask(own, 0)
        assert (allowed(row) == allowed(own[0].numpy())).all(), position
        if position < len(drafts) and drafts[position] >= 0:
            assert grammar.accept_tokens("x", drafts[position : position + 1])
            taken += 1
        # Behind a placeholder the state stays: all further rows must repeat this one.
    if taken:
        grammar.rollback(taken)


def test_upstream_leaves_rows_open_when_drafts_never_arrive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that p005 cures; when this fails with a new vLLM, the patch can go."""
    request = advanced(world, "a", 2)
    drafts = {"a": [-1] * DRAFTS}
    assert [is_open(row) for row in build(world, {"a": request}, drafts)["a"]] == [False] * 4
    monkeypatch.setattr(mask_rows, "open_rows", lambda _: [])
    assert [is_open(row) for row in build(world, {"a": request}, drafts)["a"]] == [False, True, True, True]


def test_unverified_drafts_are_counted(world: World, installation: Installation) -> None:
    before = installation.observation.value(UNVERIFIED_DRAFTS)
    a, b = advanced(world, "a", 1), advanced(world, "b", 1)
    first = legal(world, a.structured_output_request.grammar, 1)
    build(world, {"a": a, "b": b}, {"a": [*first, -1, -1], "b": [-1, -1, -1]})
    assert installation.observation.value(UNVERIFIED_DRAFTS) - before == 5


def test_a_refused_draft_closes_the_rows_behind_it(world: World) -> None:
    """Upstream's own cure (0.32): a draft that the grammar refuses while the mask is built."""
    request = advanced(world, "a", 1)
    forbidden = next(t for t in range(3, 2048) if not request_allows(request, t))
    rows = build(world, {"a": request}, {"a": [forbidden, 4, 4]})["a"]
    assert not any(is_open(row) for row in rows)
    assert all((row == rows[0]).all() for row in rows)


def request_allows(request: Any, token: int) -> bool:
    grammar = request.structured_output_request.grammar
    return bool(grammar.validate_tokens([token]))


def test_rows_behind_the_end_are_the_only_open_ones(world: World) -> None:
    request = world.make("a", {"const": 7})
    grammar = request.structured_output_request.grammar
    window = legal(world, grammar, DRAFTS + 1)
    assert window[-1] == END
    drafts = {"a": (window + [-1] * DRAFTS)[:DRAFTS]}
    ends = window.index(END)
    rows = build(world, {"a": request}, drafts)["a"]
    assert [is_open(row) for row in rows] == [position > ends for position in range(DRAFTS + 1)]
