"""When the rows of a step are filled by threads, and in which pieces."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided.mask_split import MaskSplit
from structuredllm_engine_patches.seams.mask_threads import (
    build_grammar_bitmask,
    build_grammar_init,
    worker_count,
)

SLOW, QUICK = 0.001, 0.00001
"""Seconds of a row."""


def learned(row_seconds: float, *, workers: int = 4, rows: int = 64) -> MaskSplit:
    split = MaskSplit(workers)
    for _ in range(10):
        split.note(rows, rows * row_seconds, None)
    return split


def test_nothing_is_known_at_first() -> None:
    assert MaskSplit(8).rows_per_piece(1000) is None


def test_slow_rows_are_split_into_more_pieces_than_workers() -> None:
    assert learned(SLOW).rows_per_piece(64) == 4
    assert learned(SLOW).rows_per_piece(65) == 5
    assert learned(SLOW).rows_per_piece(5) == 1


def test_quick_rows_stay_on_the_loop_however_many() -> None:
    assert learned(QUICK).rows_per_piece(128) is None
    assert learned(QUICK).rows_per_piece(256) is not None


@pytest.mark.parametrize(("workers", "rows"), [(1, 64), (4, 3), (4, 0)])
def test_where_threads_cannot_help(workers: int, rows: int) -> None:
    assert learned(SLOW, workers=workers).rows_per_piece(rows) is None


def test_a_step_by_threads_counts_their_time_together() -> None:
    split = learned(SLOW)
    piece = split.rows_per_piece(64)
    for _ in range(10):
        split.note(64, 64 * SLOW / 4, piece)
    assert split.rows_per_piece(64) == piece
    for _ in range(10):
        split.note(64, 64 * QUICK / 4, piece)
    assert split.rows_per_piece(64) is None


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (2, 2), (3, 2), (4, 2), (12, 6), (64, 8)])
def test_workers_by_cpus(cpus: int, workers: int) -> None:
    assert worker_count(cpus) == workers


class Upstream:
    """Stands in for upstream's method: notes what its two attributes are when it is called."""

    def __init__(self, row_seconds: float) -> None:
        self.now = 0.0
        self.row_seconds = row_seconds
        self.seen: list[tuple[bool, int | None]] = []

    def __call__(self, manager: Any, requests: Any, request_ids: list[str], drafts: Any) -> str:
        rows = len(request_ids)
        parallel = rows > manager.fill_bitmask_parallel_threshold
        if parallel:
            assert isinstance(manager.executor_for_fillmask, ThreadPoolExecutor)
        self.seen.append((parallel, manager.fill_bitmask_parallel_batch_size if parallel else None))
        self.now += rows * self.row_seconds / (2 if parallel else 1)
        return "masks"


def manager_of(*, drafts: int = 0, **attributes: Any) -> Any:
    config = SimpleNamespace(num_speculative_tokens=drafts)
    return SimpleNamespace(vllm_config=config, fill_bitmask_parallel_threshold=128, **attributes)


def test_the_first_request_has_the_method_of_the_class_wrapped() -> None:
    class Manager:
        vllm_config = SimpleNamespace(num_speculative_tokens=0)

        def grammar_bitmask(self, requests: Any, request_ids: list[str], drafts: Any) -> str:
            return f"upstream {len(request_ids)}"

    manager: Any = Manager()
    grammar_init = build_grammar_init(lambda _, request: f"compiles {request}")
    assert grammar_init(manager, "a") == "compiles a"
    wrapped = manager.grammar_bitmask
    assert grammar_init(manager, "b") == "compiles b"
    assert manager.grammar_bitmask is wrapped
    assert wrapped({}, ["a", "b"], {}) == "upstream 2"
    assert manager.fill_bitmask_parallel_threshold == 2


def steps(
    upstream: Upstream, manager: Any, rows: list[int], drafts: dict[str, list[int]] | None = None
) -> list[tuple[bool, int | None]]:
    build: Callable[..., Any] = build_grammar_bitmask(upstream, lambda: upstream.now, cpus=4)
    for count in rows:
        assert build(manager, {}, [f"r{n}" for n in range(count)], drafts or {}) == "masks"
    return upstream.seen


def test_a_slow_step_has_the_next_one_split() -> None:
    manager = manager_of()
    assert steps(Upstream(SLOW), manager, [40, 40, 40]) == [(False, None), (True, 5), (True, 5)]
    manager.executor_for_fillmask.shutdown()


def test_many_quick_rows_are_not_split_as_upstream_would() -> None:
    assert steps(Upstream(QUICK / 2), manager_of(), [200, 200]) == [(False, None), (False, None)]


def test_a_pool_that_is_wide_enough_is_kept() -> None:
    with ThreadPoolExecutor(2) as wide, ThreadPoolExecutor(1) as narrow:
        kept, replaced = manager_of(executor_for_fillmask=wide), manager_of(executor_for_fillmask=narrow)
        steps(Upstream(SLOW), kept, [40, 40])
        steps(Upstream(SLOW), replaced, [40, 40])
        assert kept.executor_for_fillmask is wide
        assert replaced.executor_for_fillmask is not narrow
        replaced.executor_for_fillmask.shutdown()


def test_speculative_decoding_is_left_to_upstream() -> None:
    assert steps(Upstream(SLOW), manager_of(drafts=2), [40, 40], {"r0": [1]}) == [(False, None)] * 2
