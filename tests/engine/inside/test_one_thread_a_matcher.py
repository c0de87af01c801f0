"""A grammar's matcher is touched by one thread at a time: what happens if not, and that vLLM keeps to it."""

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.structured_output import StructuredOutputManager

from structuredllm_engine_patches.seams import mask_threads
from tests.engine.inside.closed import overlap
from tests.engine.inside.closed.world import SCHEMA, World

SCRIPT = Path(__file__).parent / "closed" / "shared_matcher.py"
SECONDS = 4
TRIES = 5
MANY = 160
"""Above the 128 requests from which upstream fills the masks in a pool of threads."""


def drive(mode: str) -> tuple[int, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mode, str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}


def test_a_shared_matcher_crashes_or_refuses_what_its_mask_allows() -> None:
    seen = []
    for _ in range(TRIES):
        status, counts = drive("shared")
        seen.append((status, counts))
        if status < 0 or counts.get("rejected"):
            return
    raise AssertionError(f"sharing did no harm in {TRIES} tries: {seen}")


def test_a_matcher_of_its_own_does_not() -> None:
    status, counts = drive("own")
    assert status == 0
    assert counts["accepted"] > 100
    assert counts["rejected"] == 0


def wide_world(requests: int) -> World:
    """Return a world with as many structured requests, half of them of one schema, and a wide pool."""
    world = World(drafts=0)
    # Upstream's pool has one thread on a small machine, which would hide an overlap.
    world.manager.executor_for_fillmask.shutdown()
    world.manager.executor_for_fillmask = ThreadPoolExecutor(max_workers=8)
    for number in range(requests):
        schema = SCHEMA if number % 2 else {**SCHEMA, "$comment": str(number)}
        world.add(f"r{number}", schema)
    return world


@pytest.mark.parametrize("requests", [16, MANY])
def test_no_two_threads_are_inside_one_grammar(requests: int) -> None:
    world = wide_world(requests)
    # Two requests of one schema share its compiled form, and must not share a matcher.
    matchers = {id(world.grammar(f"r{n}").matcher) for n in range(requests)}
    assert len(matchers) == requests
    with overlap.watched_grammars() as watch:
        for number in range(requests, requests + 8):
            world.step()
            world.add(f"r{number}", {**SCHEMA, "$comment": str(number)})
        world.run()
    assert watch.overlaps == []
    assert watch.calls > requests * 10
    assert world.rejects == 0
    assert all(record.finish == "stop" for record in world.records.values())
    if requests == MANY:
        assert max(len(threads) for threads in watch.threads.values()) > 1, "the pool was not used"


@pytest.mark.parametrize("requests", [5, 24])
def test_slow_rows_are_filled_by_several_threads_with_the_same_masks(requests: int) -> None:
    """p043: a step that took a second has the next one split; one thread a grammar, every row written."""
    world = wide_world(requests)
    names = [f"r{number}" for number in range(requests)]
    ask: tuple[Any, ...] = (world.manager, world.scheduler.requests, names, {})
    upstream = StructuredOutputManager.grammar_bitmask
    expected = upstream(*ask).copy()
    fill = mask_threads.build_grammar_bitmask(upstream, itertools.count().__next__, cpus=8)
    fill(*ask)
    world.manager._grammar_bitmask.fill_(0x5A5A5A5A)
    with overlap.watched_grammars() as watch:
        masks = fill(*ask)
    assert (masks == expected).all()
    assert watch.overlaps == []
    threads = set().union(*watch.threads.values())
    assert len(threads) > 1
    assert threading.get_ident() not in threads


def test_the_watch_notices_a_shared_matcher() -> None:
    world = wide_world(MANY)
    shared = world.grammar("r0")
    for number in range(MANY):
        world.scheduler.requests[f"r{number}"].structured_output_request.grammar = shared
    world.step()
    # Upstream's rule of 128 rows, whatever p043 made of the step before.
    world.manager.fill_bitmask_parallel_threshold = MANY - 1
    names = [f"r{n}" for n in range(MANY)]
    with overlap.watched_grammars() as watch:
        StructuredOutputManager.grammar_bitmask(world.manager, world.scheduler.requests, names, {})
    assert watch.overlaps
