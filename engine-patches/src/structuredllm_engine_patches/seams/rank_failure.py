"""p011: a rank whose forward pass or sampling failed leaves, so that the executor notices.

Upstream (vLLM 0.32, `WorkerProc._execute_worker_rpc`) catches every error of a call, logs it, and answers
only where the executor reads an answer: on the last stage. An error on any other stage is told to nobody,
the other stages wait for its tensors for ever, and /health stays 200. The seam watches the worker's method
while upstream calls it; what upstream does with the error stays as it is.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.failure.cause import raised, rank_name
from structuredllm_engine_patches.failure.leave import leave_now, start_timer
from structuredllm_engine_patches.failure.note import FailureNote
from structuredllm_engine_patches.failure.verdict import FATAL_METHODS, Verdict, judge

REPLY_SECONDS = 2.0
"""So long a rank whose error the executor reads stays, to hand it over."""

Execute = Callable[[Any, tuple[Any, ...]], None]
Leave = Callable[[logging.Logger], None]


def build_execute(
    original: Execute, note: FailureNote, logger: logging.Logger, leave: Leave = leave_now
) -> Execute:
    """Return the replacement of `WorkerProc._execute_worker_rpc`.

    Args:
        original: upstream's method.
        note: where the cause goes.
        logger: where the last line of the process goes.
        leave: ends the process; another one in tests.
    """

    @wraps(original)
    def _execute_worker_rpc(proc: Any, rpc_request: tuple[Any, ...]) -> None:
        method, _, _, reply_rank = rpc_request
        if method not in FATAL_METHODS:
            original(proc, rpc_request)
            return
        parallel = proc.worker.vllm_config.parallel_config
        who = name_of(proc.rank, parallel)

        def on_error(error: Exception) -> None:
            # Before upstream hands the error over: the engine core may end within the same millisecond.
            note.write(raised(f"{who}, {method}", error))

        error = _call_watched(original, proc, rpc_request, on_error)
        if error is None:
            return
        fault_tolerant = bool(getattr(parallel, "enable_fault_tolerance", False))
        verdict = judge(method, rank=proc.rank, reply_rank=reply_rank, fault_tolerant=fault_tolerant)
        if verdict is Verdict.GO_ON:
            return
        logger.critical(
            "%s failed in %s (%s: %s): the engine cannot go on, this process ends",
            who,
            method,
            type(error).__name__,
            error,
        )
        if verdict is Verdict.LEAVE:
            leave(logger)
        else:
            start_timer(REPLY_SECONDS, lambda: leave(logger))

    return _execute_worker_rpc


def name_of(rank: int, parallel_config: Any) -> str:
    """Return what a rank is called under vLLM's parallel configuration."""
    return rank_name(
        rank, world_size=parallel_config.world_size, stages=parallel_config.pipeline_parallel_size
    )


def _call_watched(
    original: Execute, proc: Any, rpc_request: tuple[Any, ...], on_error: Callable[[Exception], None]
) -> Exception | None:
    """Let upstream call the worker's method and return the error that it raised, which upstream swallows.

    The method is wrapped for the length of this call, on the instance: upstream looks it up by name.
    """
    worker, method = proc.worker, rpc_request[0]
    inner = getattr(worker, method)
    errors: list[Exception] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except Exception as error:
            errors.append(error)
            on_error(error)
            raise

    own = vars(worker).get(method)
    setattr(worker, method, watched)
    try:
        original(proc, rpc_request)
    finally:
        if own is None:
            delattr(worker, method)
        else:
            setattr(worker, method, own)
    return errors[0] if errors else None
