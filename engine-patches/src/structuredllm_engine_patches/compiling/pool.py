"""The pool: takes jobs from any thread, runs them in workers as the lanes say, and settles their futures.

One thread does everything; callers never wait for it. A future ends with a `CompileResult` or with a
`GrammarFailureError` that names the cause.
"""

import contextlib
import itertools
import logging
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from structuredllm_engine_patches.compiling import frames
from structuredllm_engine_patches.compiling.fork_client import ServerLostError, ServerOptions
from structuredllm_engine_patches.compiling.jobs import CompileJob, CompileResult, to_bytes
from structuredllm_engine_patches.compiling.worker_handle import WorkerHandle
from structuredllm_engine_patches.compiling.workers import Answered, Ended, Workers
from structuredllm_engine_patches.guided import lanes
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError, failure_of
from structuredllm_engine_patches.guided.lanes import Lane, LaneLimits, Lanes, Refusal
from structuredllm_engine_patches.guided.weight import weight_of

MEMORY_CHECK_SECONDS = 0.05


class PoolObserver(Protocol):
    """Who is told what happens; called from the pool's thread."""

    def job_ended(self, seconds: float, cause: Cause | None) -> None:
        """One job ended after so many seconds in the pool; `cause` is None for a result."""

    def workers_changed(self, busy: int) -> None:
        """So many workers have a job."""

    def worker_lost(self, reason: str) -> None:
        """A worker was killed (`timeout`, `memory`, `crowded`) or ended by itself (`crash`)."""


@dataclass(frozen=True)
class PoolOptions:
    """Sizes of a pool.

    Attributes:
        lanes: see `LaneLimits`.
        server: see `ServerOptions`; its `memory_bytes` is the limit of a worker's growth.
        total_memory_bytes: bound of the growth of all workers together; above it the largest is killed.
    """

    lanes: LaneLimits
    server: ServerOptions
    total_memory_bytes: int


@dataclass
class _Pending:
    job: CompileJob
    future: "Future[CompileResult]"
    submitted: float
    worker: WorkerHandle | None = None


@dataclass
class _Inbox:
    """What other threads hand to the pool's thread."""

    jobs: "deque[tuple[CompileJob, Future[CompileResult]]]" = field(default_factory=deque)
    blobs: deque[bytes] = field(default_factory=deque)
    closing: bool = False


class CompilePool:
    """A pool of compile workers. `submit`, `load` and `close` may be called from any thread."""

    def __init__(
        self,
        options: PoolOptions,
        observer: PoolObserver,
        logger: logging.Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._observer = observer
        self._logger = logger
        self._clock = clock
        self._lanes = Lanes(options.lanes)
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._inbox = _Inbox()
        self._lock = threading.Lock()
        self._next_memory_check = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._workers = Workers(
            options.server, self._selector, keep_idle=options.lanes.fast_slots, logger=logger
        )
        self._thread = threading.Thread(target=self._main, name="structuredllm-compile-pool", daemon=True)
        self._thread.start()

    def load(self, blob: bytes) -> None:
        """Give the workers what their compiler needs; jobs wait until then."""
        with self._lock:
            self._inbox.blobs.append(blob)
        self._wake()

    def submit(self, job: CompileJob) -> "Future[CompileResult]":
        """Return the future of a job."""
        future: Future[CompileResult] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            closing = self._inbox.closing
            if not closing:
                self._inbox.jobs.append((job, future))
        if closing:
            future.set_exception(_unavailable("The engine is stopping."))
        self._wake()
        return future

    def close(self) -> None:
        """End all workers and settle all futures; a second call does nothing."""
        with self._lock:
            self._inbox.closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        # A full buffer wakes too; a closed socket belongs to a closed pool.
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # Everything below runs in the pool's thread.

    def _main(self) -> None:
        try:
            while not self._inbox.closing:
                self._turn()
        except Exception:
            self._logger.exception(
                "the compile pool failed: requests whose grammar must be compiled will end"
            )
        with self._lock:
            self._inbox.closing = True
        self._stop()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    while self._wake_read.recv(4096):
                        pass
            else:
                self._take(self._workers.hear(key.data, self._clock()))
        self._take(self._workers.start_server(self._clock()))
        self._take_inbox()
        self._check_memory()
        for action in self._lanes.advance(self._clock(), may_start=self._workers.ready):
            self._act(action)
        self._observer.workers_changed(self._workers.busy)

    def _patience(self) -> float | None:
        times = [self._lanes.wake_at(), self._workers.start_at]
        if self._workers.busy:
            times.append(self._next_memory_check)
        known = [time for time in times if time is not None]
        return max(0.0, min(known) - self._clock()) if known else None

    def _take_inbox(self) -> None:
        with self._lock:
            jobs, self._inbox.jobs = self._inbox.jobs, deque()
            blobs, self._inbox.blobs = self._inbox.blobs, deque()
        for blob in blobs:
            self._take(self._workers.load(blob, self._clock()))
        for job, future in jobs:
            job_id, now = next(self._ids), self._clock()
            self._pending[job_id] = _Pending(job, future, now)
            refused = self._lanes.submit(job_id, weight_of(job.spec), now)
            if refused is not None:
                self._act(refused)

    def _take(self, events: Sequence[Answered | Ended]) -> None:
        for event in events:
            match event:
                case Answered():
                    self._settle(event.job_id, _result_of(event))
                case Ended(code=None):
                    self._settle(event.job_id, _unavailable("Its compile worker was lost."))
                case Ended():
                    self._observer.worker_lost("crash")
                    self._settle(event.job_id, _crash(event.code))

    def _check_memory(self) -> None:
        now = self._clock()
        if now < self._next_memory_check:
            return
        self._next_memory_check = now + MEMORY_CHECK_SECONDS
        limits = self._options
        for worker in self._workers.too_large(limits.server.memory_bytes, limits.total_memory_bytes):
            job_id = worker.job_id
            if job_id is not None:
                self._stop_worker(self._pending[job_id], "memory")
                self._settle(job_id, GrammarFailureError(Cause.GRAMMAR_COMPILE_MEMORY))

    def _act(self, action: lanes.Action) -> None:
        pending = self._pending[action.job_id]
        match action:
            case lanes.Start(lane=lane):
                self._start(action.job_id, pending, lane)
            case lanes.Demote() if pending.worker is not None:
                pending.worker.demote()
            case lanes.Park():
                self._stop_worker(pending, "crowded")
            case lanes.Refuse(reason=Refusal.TIMEOUT):
                self._stop_worker(pending, "timeout")
                limit = f"The limit is {self._options.lanes.timeout_seconds:g} s."
                self._settle(action.job_id, GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT, limit))
            case lanes.Refuse():
                self._stop_worker(pending, "crowded")
                self._settle(action.job_id, _unavailable("Too many compilations are under way."))

    def _start(self, job_id: int, pending: _Pending, lane: Lane) -> None:
        try:
            frame = frames.encode(pending.job.header(job_id), to_bytes(pending.job.spec))
            pending.worker = self._workers.give(job_id, frame, slow=lane is Lane.SLOW)
        except (ServerLostError, OSError) as error:
            self._settle(job_id, _unavailable(str(error)))
        except frames.FrameError as error:
            self._settle(job_id, GrammarFailureError(Cause.GRAMMAR_COMPILE_FAILED, str(error)))

    def _stop_worker(self, pending: _Pending, reason: str) -> None:
        if pending.worker is not None:
            self._workers.stop(pending.worker)
            self._observer.worker_lost(reason)
            pending.worker = None

    def _settle(self, job_id: int, outcome: CompileResult | GrammarFailureError) -> None:
        pending = self._pending.pop(job_id)
        self._lanes.finished(job_id)
        seconds = self._clock() - pending.submitted
        if isinstance(outcome, GrammarFailureError):
            self._observer.job_ended(seconds, outcome.failure.cause)
            pending.future.set_exception(outcome)
        else:
            self._observer.job_ended(seconds, None)
            pending.future.set_result(outcome)

    def _stop(self) -> None:
        with contextlib.suppress(Exception):
            self._take_inbox()
        self._workers.close()
        for job_id in list(self._pending):
            self._settle(job_id, _unavailable("The engine is stopping."))
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()


def _unavailable(detail: str) -> GrammarFailureError:
    return GrammarFailureError(Cause.GRAMMAR_COMPILER_UNAVAILABLE, detail)


def _crash(code: int | None) -> GrammarFailureError:
    # SIGABRT is what C++ code does where an allocation fails and nothing can report it, SIGKILL what the
    # kernel does when the machine has no memory left.
    memory = code in (-signal.SIGABRT, -signal.SIGKILL)
    cause = Cause.GRAMMAR_COMPILE_MEMORY if memory else Cause.GRAMMAR_COMPILE_FAILED
    return GrammarFailureError(cause, f"The compiler gave up (exit code {code}).")


def _result_of(event: Answered) -> CompileResult | GrammarFailureError:
    if "error" not in event.header:
        seconds = float(str(event.header["seconds"]))
        return CompileResult(event.blob, seconds, here=bool(event.header.get("here")))
    if event.header.get("memory"):
        return GrammarFailureError(Cause.GRAMMAR_COMPILE_MEMORY)
    failure = failure_of(ValueError(str(event.header["error"])))
    return GrammarFailureError(failure.cause, failure.detail)
