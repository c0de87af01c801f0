"""p012: an executor that lost a rank says so first and tidies up afterwards.

Upstream (vLLM 0.32, `MultiprocExecutor`): the monitor of the worker processes first shuts the executor down,
which waits 5 s for the other ranks, 4 s more after SIGTERM, and only then tells the engine core. The other
ranks do wait: for tensors of the one that is gone. Meanwhile /health is 200 and clients wait. The seam is in
front of `shutdown`, which both the monitor and a failing engine core call.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.failure.cause import ended, raised
from structuredllm_engine_patches.failure.leave import EXIT_CODE, Departure, start_timer
from structuredllm_engine_patches.failure.note import FailureNote
from structuredllm_engine_patches.seams.rank_failure import name_of

GRACE_SECONDS = 1.0
"""So long the remaining ranks may leave by themselves; nothing of theirs is worth more after a failure."""

EXIT_CODE_SECONDS = 0.5
"""So long a dead rank's exit code is waited for."""

LEAVE_SECONDS = 1.5
"""After so long the engine core ends, whatever holds its loop up: the answer of a rank on another node
comes over a socket that no other thread can wake. Its end is what the front-end notices then."""

Shutdown = Callable[[Any], None]


def build_shutdown(
    original: Shutdown, note: FailureNote, logger: logging.Logger, clock: Callable[[], float] = time.monotonic
) -> Shutdown:
    """Return the replacement of `MultiprocExecutor.shutdown`; `clock` in seconds."""
    # The monitor's thread and the engine core's loop both come here after a failure: one after the other.
    one_at_a_time = threading.RLock()

    @wraps(original)
    def shutdown(executor: Any) -> None:
        with one_at_a_time:
            if not getattr(executor, "shutting_down", False):
                if getattr(executor, "is_failed", False):
                    _note_dead_ranks(executor, note, clock)
                    _tell(executor, note, logger)
                    _end_ranks(executor, clock)
                elif (error := _failure_of_engine_core(executor)) is not None:
                    note.write(raised("engine core", error))
                    _end_ranks(executor, clock)
            original(executor)

    return shutdown


def _failure_of_engine_core(executor: Any) -> Exception | None:
    """Return the error whose handling this shutdown is part of; None for an orderly one.

    An engine core that failed calls from its `finally`. Only an engine core process has a failure callback:
    an engine inside the caller's own process is none of our business.
    """
    error = sys.exc_info()[1]
    if getattr(executor, "failure_callback", None) is None or not isinstance(error, Exception):
        return None
    return error


def _note_dead_ranks(executor: Any, note: FailureNote, clock: Callable[[], float]) -> None:
    # The monitor wakes when a process closed its end of a pipe, a moment before it has an exit code.
    give_up_at = clock() + EXIT_CODE_SECONDS
    while all(handle.proc.exitcode is None for handle in executor.workers) and clock() < give_up_at:
        time.sleep(0.005)
    for handle in executor.workers:
        code = handle.proc.exitcode
        # A rank that left with our code has left a note of its own.
        if code is not None and code != EXIT_CODE:
            note.write(ended(name_of(handle.rank, executor.parallel_config), code))


def _tell(executor: Any, note: FailureNote, logger: logging.Logger) -> None:
    """Tell the engine core by its callback, and wake its loop where it waits for an answer of a rank."""
    cause = note.read()
    logger.error("the engine cannot go on: %s", cause.text if cause else "a rank is gone")
    callback, executor.failure_callback = executor.failure_callback, None
    if callback is None:
        return
    callback()
    for queue in executor.response_mqs:
        queue.shutdown()
    if not getattr(executor.parallel_config, "enable_fault_tolerance", False):
        departure = Departure(lambda: "the engine core did not end by itself and is ended", logger)
        start_timer(LEAVE_SECONDS, departure.leave)


def _end_ranks(executor: Any, clock: Callable[[], float]) -> None:
    """Ask the remaining ranks to leave, as upstream does, and end those that cannot."""
    for handle in executor.workers:
        if handle.death_writer is not None:
            handle.death_writer.close()
            handle.death_writer = None
    give_up_at = clock() + GRACE_SECONDS
    processes = [handle.proc for handle in executor.workers]
    while any(process.is_alive() for process in processes) and clock() < give_up_at:
        time.sleep(0.05)
    for process in processes:
        if process.is_alive():
            process.kill()
