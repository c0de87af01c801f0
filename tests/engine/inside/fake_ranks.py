"""A real `MultiprocExecutor` with real `WorkerProc` processes whose workers compute nothing.

Only `WorkerProc.__init__` is another one: it makes the message queues, but no device, model or process group.
The processes are forked, so they have it too.
"""

import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import vllm.v1.executor.multiproc_executor as upstream
from vllm.config import ParallelConfig, VllmConfig
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from structuredllm_engine_patches.seams import executor_failure

STAGES = 3


class FakeWorker:
    """A worker whose calls do what their argument says: `{rank: "raise" | "hang"}`, else return the rank."""

    def __init__(self, rank: int, vllm_config: VllmConfig) -> None:
        self.rank = rank
        self.vllm_config = vllm_config

    def _do(self, orders: dict[int, str]) -> int:
        order = orders.get(self.rank)
        if order == "raise":
            raise ValueError(f"boom in {self.rank}")
        if order == "hang":
            # As in a receive from a peer that is gone: no Python code runs, so no SIGTERM is handled.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(3600)
        return self.rank

    execute_model = sample_tokens = utility = _do

    def shutdown(self) -> None:
        """Nothing to clean up."""


def init(self: Any, vllm_config: VllmConfig, rank: int, input_shm_handle: Any, **_: Any) -> None:
    """Stand in for `WorkerProc.__init__`."""
    self.rank = rank
    self.worker = FakeWorker(rank, vllm_config)
    self.use_async_scheduling = True
    self.async_output_queue = queue.Queue()
    threading.Thread(target=self.async_output_busy_loop, daemon=True).start()
    self.rpc_broadcast_mq = MessageQueue.create_from_handle(input_shm_handle, rank)
    self.worker_response_mq = MessageQueue(1, 1)
    self.peer_response_handles = []


class Ranks:
    """The executor, and what an engine core sees of it.

    Attributes:
        executor: the real executor.
        told: set when the failure callback was called.
    """

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.told = threading.Event()
        executor.register_failure_callback(self.told.set)

    def step(self, orders: dict[int, str], method: str = "execute_model") -> Any:
        """Send a step as the engine core does and return its future."""
        return self.executor.collective_rpc(
            method, args=(orders,), non_block=True, unique_reply_rank=self.executor.output_rank
        )

    def processes(self) -> list[Any]:
        """Return the worker processes."""
        return [handle.proc for handle in self.executor.workers]

    def all_gone(self, seconds: float) -> bool:
        """Return whether all worker processes end within so many seconds."""
        until = time.monotonic() + seconds
        for process in self.processes():
            process.join(max(0.0, until - time.monotonic()))
        return not any(process.is_alive() for process in self.processes())


@contextmanager
def running_ranks(monkeypatch: Any) -> Iterator[Ranks]:
    """Run three fake ranks under a real executor for the length of the block."""
    monkeypatch.setattr(upstream.WorkerProc, "__init__", init)
    monkeypatch.setattr(upstream, "OMPProcessManager", _NoThreadBinding)
    # This process plays the engine core, which would end itself soon after it was told.
    monkeypatch.setattr(executor_failure, "start_timer", lambda *_: None)
    config = VllmConfig(
        parallel_config=ParallelConfig(pipeline_parallel_size=STAGES, distributed_executor_backend="mp")
    )
    # The CPU platform sets the variable to spawn, and vLLM caches variables once an engine core was made.
    monkeypatch.setattr(upstream, "get_mp_context", lambda: multiprocessing.get_context("fork"))
    executor = upstream.MultiprocExecutor(config)
    ranks = Ranks(executor)
    try:
        yield ranks
    finally:
        for process in ranks.processes():
            process.kill()
        executor.shutdown()


class _NoThreadBinding:
    """Stands in for the binding of OpenMP threads to CPUs: the ranks compute nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    @contextmanager
    def configure_omp_envs(self, **_: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace()
