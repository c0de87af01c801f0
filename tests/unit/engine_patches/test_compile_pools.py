"""The sizes of the compile pools, and their metrics."""

import os
from pathlib import Path

import pytest

from structuredllm_engine_patches.compiling.priority import compile_threads, slow_compilations, usable_cpus
from structuredllm_engine_patches.guided.causes import Cause
from structuredllm_engine_patches.seams.compile_pools import PoolMetrics, options_of
from structuredllm_engine_patches.settings import CompileSettings
from structuredllm_engine_patches.telemetry.metrics import (
    COMPILE_FAILURES,
    COMPILE_SECONDS,
    COMPILE_WORKERS_BUSY,
    COMPILE_WORKERS_LOST,
)
from structuredllm_engine_patches.telemetry.observation import Observation

GIB = 1 << 30


@pytest.mark.parametrize(("cpus", "fast", "slow"), [(1, 2, 2), (2, 2, 2), (8, 4, 2), (64, 8, 4)])
def test_sizes_by_cpus(cpus: int, fast: int, slow: int) -> None:
    options = options_of(CompileSettings(), cpus)
    assert options.lanes.fast_slots == fast
    assert options.lanes.slow_slots == slow
    assert options.lanes.timeout_seconds == 10
    assert (options.server.memory_bytes, options.total_memory_bytes) == (GIB, 4 * GIB)


def test_sizes_by_settings() -> None:
    options = options_of(CompileSettings(2.0, GIB // 4, 16), cpus=2)
    assert (options.lanes.fast_slots, options.lanes.slow_slots, options.lanes.timeout_seconds) == (16, 16, 2)
    assert (options.server.memory_bytes, options.total_memory_bytes) == (GIB // 4, GIB)


def test_slow_compilations_leave_half_of_many_cpus() -> None:
    assert all(slow_compilations(cpus) * compile_threads(cpus) <= cpus / 2 for cpus in range(4, 257))
    assert compile_threads(2) == 1


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    own = len(os.sched_getaffinity(0))
    limit = tmp_path / "cpu.max"
    assert usable_cpus(limit) == own
    for text, cpus in (("max 100000\n", own), ("50000 100000\n", 1), ("9900000 100000\n", own), ("", own)):
        limit.write_text(text)
        assert usable_cpus(limit) == cpus, text


def test_metrics() -> None:
    observation = Observation()
    metrics = PoolMetrics(observation)
    assert observation.value(COMPILE_FAILURES, cause=Cause.GRAMMAR_COMPILE_TIMEOUT) == 0
    metrics.job_ended(0.2, None)
    metrics.job_ended(10.0, Cause.GRAMMAR_COMPILE_TIMEOUT)
    metrics.worker_lost("timeout")
    metrics.workers_changed(3)
    assert observation.distributions[COMPILE_SECONDS, ()].total == pytest.approx(10.2)
    assert observation.value(COMPILE_FAILURES, cause=Cause.GRAMMAR_COMPILE_TIMEOUT) == 1
    assert observation.value(COMPILE_WORKERS_LOST, reason="timeout") == 1
    assert observation.readers[COMPILE_WORKERS_BUSY, ()]() == 3
