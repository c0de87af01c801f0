"""p043: the masks of a slow step are filled by several threads."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from structuredllm_engine_patches.guided.mask_split import MaskSplit

Method = Callable[..., Any]

ATTRIBUTE = "_structuredllm_mask_split"
MOST_WORKERS = 8
"""As upstream: more threads wait for memory."""


def worker_count(cpus: int) -> int:
    """Return the number of threads: half of the CPUs, two at least where there are two."""
    return min(MOST_WORKERS, cpus, max(2, cpus // 2))


def build_grammar_init(original: Method) -> Method:
    """Return the replacement of `StructuredOutputManager.grammar_init`, which comes before any mask.

    The first request has the object's `grammar_bitmask` wrapped, around whatever the class has: p005
    replaces the class's.
    """

    @wraps(original)
    def grammar_init(manager: Any, request: Any) -> Any:
        if "grammar_bitmask" not in vars(manager):
            fill = build_grammar_bitmask(type(manager).grammar_bitmask)
            manager.grammar_bitmask = partial(fill, manager)
        return original(manager, request)

    return grammar_init


def build_grammar_bitmask(
    original: Method, clock: Callable[[], float] = time.perf_counter, cpus: int | None = None
) -> Method:
    """Return the replacement of `StructuredOutputManager.grammar_bitmask`.

    Upstream's own parallel path does the work; the seam sets when it is taken and in which pieces. A row is
    filled by one thread, and the loop waits for all of them, so a grammar has one thread at a time.
    """

    @wraps(original)
    def grammar_bitmask(manager: Any, requests: Any, request_ids: Sequence[str], drafts: Any) -> Any:
        rows = len(request_ids)
        # With speculative decoding a window's rows follow from one another: upstream has no parallel path.
        if rows == 0 or manager.vllm_config.num_speculative_tokens > 0:
            return original(manager, requests, request_ids, drafts)
        split: MaskSplit | None = getattr(manager, ATTRIBUTE, None)
        if split is None:
            split = MaskSplit(worker_count(cpus or len(os.sched_getaffinity(0))))
            setattr(manager, ATTRIBUTE, split)
        piece = split.rows_per_piece(rows)
        # `rows > threshold` is upstream's question.
        manager.fill_bitmask_parallel_threshold = rows if piece is None else 0
        if piece is not None:
            manager.fill_bitmask_parallel_batch_size = piece
            _ensure_pool(manager, split.workers)
        began = clock()
        masks = original(manager, requests, request_ids, drafts)
        split.note(rows, clock() - began, piece)
        return masks

    return grammar_bitmask


def _ensure_pool(manager: Any, workers: int) -> None:
    pool: ThreadPoolExecutor | None = getattr(manager, "executor_for_fillmask", None)
    if pool is None or pool._max_workers < workers:
        if pool is not None:
            pool.shutdown(wait=False)
        manager.executor_for_fillmask = ThreadPoolExecutor(workers, thread_name_prefix="structuredllm-mask")
