"""The workers of a pool and the fork server that makes them, which is started anew when it dies.

Used by the pool's thread only. A worker that was demoted, or that started in the slow lane, cannot get its
priority back without privileges, so it ends after its job.
"""

import contextlib
import itertools
import logging
import selectors
from collections.abc import Sequence
from dataclasses import dataclass

from structuredllm_engine_patches.compiling import frames
from structuredllm_engine_patches.compiling.fork_client import ForkClient, ServerLostError, ServerOptions
from structuredllm_engine_patches.compiling.worker_handle import WorkerHandle

JOBS_PER_WORKER = 200
"""A worker is replaced after so many jobs: what leaks in C++ code stays small."""

RESTART_PAUSES_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Between two starts of a fork server that keeps dying; the last one for all further starts."""

STEADY_SECONDS = 60.0
"""A fork server that lived for so long starts the pauses anew."""


@dataclass(frozen=True)
class Answered:
    """A worker answered its job; header and blob are those of its frame."""

    job_id: int
    header: dict[str, object]
    blob: bytes


@dataclass(frozen=True)
class Ended:
    """A worker's process ended before it answered; `code` is None when that is not known."""

    job_id: int
    code: int | None


class Workers:
    """See the module.

    Args:
        options: what the fork server is started with.
        selector: gets the fork server and each worker's connection.
        keep_idle: how many idle workers to keep.
        logger: told when a fork server is lost.
    """

    def __init__(
        self,
        options: ServerOptions,
        selector: selectors.BaseSelector,
        *,
        keep_idle: int,
        logger: logging.Logger,
    ) -> None:
        self.ready = False
        self._options = options
        self._selector = selector
        self._keep_idle = keep_idle
        self._logger = logger
        self._client: ForkClient | None = None
        self._blob: bytes | None = None
        self._starts = 0
        self._started_at = 0.0
        self._start_at: float | None = 0.0
        self._ids = itertools.count(1)
        self._all: dict[int, WorkerHandle] = {}
        self._open: set[int] = set()
        self._idle: list[WorkerHandle] = []

    @property
    def busy(self) -> int:
        """Return how many have a job."""
        return sum(worker.job_id is not None for worker in self._all.values())

    @property
    def start_at(self) -> float | None:
        """Return when the next fork server is to be started; None while one runs."""
        return self._start_at

    def start_server(self, now: float) -> Sequence[Ended]:
        """Start the fork server if that is due."""
        if self._start_at is None or now < self._start_at:
            return ()
        self._starts = 1 if now - self._started_at >= STEADY_SECONDS else self._starts + 1
        self._started_at, self._start_at = now, None
        try:
            self._client = ForkClient(self._options)
        except OSError as error:
            return self._lost(f"cannot be started: {error}", now)
        self._selector.register(self._client, selectors.EVENT_READ, self._client)
        return self._load(now)

    def load(self, blob: bytes, now: float) -> Sequence[Ended]:
        """Give the fork server what its compiler needs; `ready` becomes true after it."""
        self._blob = blob
        return self._load(now)

    def hear(self, source: object, now: float) -> Sequence[Answered | Ended]:
        """Read from what the selector found readable, the `data` of its key."""
        if isinstance(source, WorkerHandle):
            return self._hear_worker(source) if source.id in self._open else ()
        if source is self._client and self._client is not None:
            try:
                events = self._client.events()
            except (ServerLostError, frames.FrameError) as error:
                return self._lost(str(error), now)
            return [ended for event in events for ended in self._note(event)]
        return ()

    def give(self, job_id: int, frame: bytes, *, slow: bool) -> WorkerHandle:
        """Give a job to a worker and return it.

        Raises:
            ServerLostError: no worker can be had.
            OSError: the worker does not take the job.
        """
        worker = self._idle.pop() if self._idle and not slow else self._fork(slow=slow)
        worker.jobs += 1
        try:
            worker.connection.sendall(frame)
        except OSError:
            self.stop(worker)
            raise
        worker.job_id = job_id
        return worker

    def stop(self, worker: WorkerHandle) -> None:
        """Kill a worker; its job is the caller's again."""
        worker.job_id = None
        self._discard(worker, kill=True)

    def too_large(self, each_bytes: int, total_bytes: int) -> list[WorkerHandle]:
        """Return the workers to stop: those above their own limit, and the largest while the sum is above."""
        grown = {w.id: w.grown_bytes() for w in self._all.values() if w.job_id is not None}
        total = sum(grown.values())
        found = []
        for worker_id in sorted(grown, key=lambda i: grown[i], reverse=True):
            if grown[worker_id] > each_bytes or total > total_bytes:
                found.append(self._all[worker_id])
                total -= grown[worker_id]
        return found

    def close(self) -> list[int]:
        """End the fork server and all workers, and return the jobs that they had."""
        self.ready = False
        jobs = [worker.job_id for worker in self._all.values() if worker.job_id is not None]
        for worker in list(self._all.values()):
            self._discard(worker, kill=False)
        self._all.clear()
        if self._client is not None:
            self._selector.unregister(self._client)
            self._client.close()
            self._client = None
        return jobs

    def _lost(self, why: str, now: float) -> list[Ended]:
        pause = RESTART_PAUSES_SECONDS[min(self._starts, len(RESTART_PAUSES_SECONDS)) - 1]
        self._start_at = now + pause
        self._logger.error("compile fork server: %s; the next one is started in %.0f s", why, pause)
        return [Ended(job_id, None) for job_id in self.close()]

    def _load(self, now: float) -> Sequence[Ended]:
        if self._client is None or self._blob is None:
            return ()
        try:
            self._client.load(self._blob)
        except ServerLostError as error:
            return self._lost(str(error), now)
        return ()

    def _note(self, event: dict[str, object]) -> Sequence[Ended]:
        worker = self._all.get(int(str(event.get("worker", 0))))
        match event["op"]:
            case "loaded":
                self.ready = True
                self._fill()
            case "forked" if worker is not None:
                worker.began(int(str(event["pid"])))
            case "exited" if worker is not None:
                del self._all[worker.id]
                self._discard(worker, kill=False)
                if worker.job_id is not None:
                    return [Ended(worker.job_id, int(str(event["code"])))]
        return ()

    def _hear_worker(self, worker: WorkerHandle) -> Sequence[Answered]:
        try:
            answers = worker.receive()
        except (OSError, frames.FrameError):
            # It ended or writes nonsense. With a job, the exit code that follows says what that means.
            self._discard(worker, kill=True)
            return ()
        found = [
            Answered(worker.job_id, h, b) for h, b in answers if h.get("id") == worker.job_id is not None
        ]
        if found:
            self._release(worker)
        return found[:1]

    def _release(self, worker: WorkerHandle) -> None:
        worker.job_id = None
        if worker.slow or worker.jobs >= JOBS_PER_WORKER or len(self._idle) >= self._keep_idle:
            self._discard(worker, kill=False)
        else:
            self._idle.append(worker)

    def _discard(self, worker: WorkerHandle, *, kill: bool) -> None:
        """Part with a worker: it ends by itself when its connection closes, or at once."""
        if worker.id not in self._open:
            return
        self._open.remove(worker.id)
        if worker in self._idle:
            self._idle.remove(worker)
        self._selector.unregister(worker.connection)
        worker.connection.close()
        if kill and self._client is not None:
            with contextlib.suppress(ServerLostError):
                self._client.kill(worker.id)

    def _fill(self) -> None:
        with contextlib.suppress(ServerLostError):
            while len(self._idle) < self._keep_idle:
                self._idle.append(self._fork(slow=False))

    def _fork(self, *, slow: bool) -> WorkerHandle:
        if self._client is None:
            raise ServerLostError("the compile fork server is gone")
        worker_id = next(self._ids)
        connection = self._client.fork(worker_id, slow=slow)
        worker = WorkerHandle(worker_id, connection, slow=slow)
        self._all[worker_id] = worker
        self._open.add(worker_id)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        return worker
