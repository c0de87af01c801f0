"""The compile pools of a process, made from the settings and kept with the installation."""

import os
from enum import StrEnum

from structuredllm_engine_patches.compiling.fork_client import ServerOptions
from structuredllm_engine_patches.compiling.pool import CompilePool, PoolOptions
from structuredllm_engine_patches.compiling.priority import slow_compilations, usable_cpus
from structuredllm_engine_patches.guided.causes import Cause
from structuredllm_engine_patches.guided.lanes import LaneLimits
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.settings import CompileSettings
from structuredllm_engine_patches.telemetry.metrics import (
    COMPILE_FAILURES,
    COMPILE_SECONDS,
    COMPILE_WORKERS_BUSY,
    COMPILE_WORKERS_LOST,
)
from structuredllm_engine_patches.telemetry.observation import Observation

ATTRIBUTE = "_structuredllm_compile_pools"
MOST_WORKERS = 8
WHOLE_MEMORY = 4
"""All workers together may take so many times the memory of one."""


class Role(StrEnum):
    """What a pool is for. An engine inside the caller's process has both."""

    PARSE = "parse"
    """The front-end's validation; knows no tokenizer."""

    COMPILE = "compile"
    """The engine core's compilation."""


def pool_of(installation: Installation, role: Role) -> CompilePool:
    """Return this process's pool, starting it at the first call. Call it from one thread a role."""
    pools: dict[tuple[int, Role], CompilePool] = installation.__dict__.setdefault(ATTRIBUTE, {})
    # By process: an engine core can be a fork of the front-end, and a pool's thread does not survive that.
    key = (os.getpid(), role)
    pool = pools.get(key)
    if pool is None:
        options = options_of(installation.settings.compiling, cpus=usable_cpus())
        observer = PoolMetrics(installation.observation if role is Role.COMPILE else Observation())
        pool = pools[key] = CompilePool(options, observer, installation.logger)
        if role is Role.PARSE:
            pool.load(b"")
    return pool


def close_pool(installation: Installation, role: Role) -> None:
    """End this process's pool if there is one; the next `pool_of` makes a new one."""
    pool = installation.__dict__.get(ATTRIBUTE, {}).pop((os.getpid(), role), None)
    if pool is not None:
        pool.close()


def options_of(settings: CompileSettings, cpus: int) -> PoolOptions:
    """Return the sizes of a pool."""
    workers = settings.workers or max(2, min(MOST_WORKERS, cpus // 2))
    limits = LaneLimits(
        fast_slots=workers,
        slow_slots=settings.workers or slow_compilations(cpus),
        timeout_seconds=settings.timeout_seconds,
    )
    server = ServerOptions(memory_bytes=settings.memory_bytes, max_result_bytes=settings.memory_bytes // 4)
    return PoolOptions(limits, server, total_memory_bytes=WHOLE_MEMORY * settings.memory_bytes)


class PoolMetrics:
    """Writes what a pool does into an observation, see `PoolObserver`."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._busy = 0
        observation.read(COMPILE_WORKERS_BUSY, lambda: self._busy)
        for cause in Cause:
            observation.add(COMPILE_FAILURES, 0, cause=cause)
        for reason in COMPILE_WORKERS_LOST.labels["reason"]:
            observation.add(COMPILE_WORKERS_LOST, 0, reason=reason)

    def job_ended(self, seconds: float, cause: Cause | None) -> None:
        """Note the time, and the failure."""
        self._observation.observe(COMPILE_SECONDS, seconds)
        if cause is not None:
            self._observation.add(COMPILE_FAILURES, cause=cause)

    def workers_changed(self, busy: int) -> None:
        """Note how many workers have a job."""
        self._busy = busy

    def worker_lost(self, reason: str) -> None:
        """Note the end of a worker."""
        self._observation.add(COMPILE_WORKERS_LOST, reason=reason)
