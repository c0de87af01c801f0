"""The pool with real processes and a compiler that does as told: limits hold, nothing is left behind."""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from structuredllm_engine_patches.compiling.fork_client import ServerOptions
from structuredllm_engine_patches.compiling.jobs import CompileJob, CompileResult, Kind, Task
from structuredllm_engine_patches.compiling.pool import CompilePool, PoolOptions
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError
from structuredllm_engine_patches.guided.lanes import LaneLimits

LOAD = "tests.unit.engine_patches.fake_compiler:load"
MIB = 1 << 20
WAIT_SECONDS = 20
LIMITS = LaneLimits(
    fast_slots=2,
    slow_slots=2,
    slice_seconds=0.05,
    patience_seconds=0.1,
    timeout_seconds=0.5,
    waiting_places=16,
)


@dataclass
class Observer:
    ended: list[Cause | None] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    busy: int = 0

    def job_ended(self, seconds: float, cause: Cause | None) -> None:
        self.ended.append(cause)

    def workers_changed(self, busy: int) -> None:
        self.busy = busy

    def worker_lost(self, reason: str) -> None:
        self.lost[reason] += 1


@dataclass
class Pool:
    pool: CompilePool
    observer: Observer

    def submit(self, spec: str) -> "Future[CompileResult]":
        return self.pool.submit(CompileJob(Task.COMPILE, Kind.EBNF, spec))

    def run(self, spec: str) -> str:
        return self.submit(spec).result(WAIT_SECONDS).blob.decode()

    def cause_of(self, spec: str) -> Cause:
        return cause_of(self.submit(spec))


def cause_of(future: "Future[CompileResult]") -> Cause:
    error = future.exception(WAIT_SECONDS)
    assert isinstance(error, GrammarFailureError)
    return error.failure.cause


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def wait_for(condition: Callable[[], bool]) -> None:
    event, end = threading.Event(), time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        event.wait(0.005)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children() -> set[int]:
    path = f"/proc/{os.getpid()}/task"
    found: set[int] = set()
    for thread in os.listdir(path):
        with open(f"{path}/{thread}/children") as file:
            found |= {int(pid) for pid in file.read().split()}
    return found


def make(limits: LaneLimits = LIMITS, blob: bytes = b"") -> Pool:
    server = ServerOptions(LOAD, memory_bytes=256 * MIB, max_result_bytes=MIB)
    observer = Observer()
    pool = CompilePool(PoolOptions(limits, server, 128 * MIB), observer, logging.getLogger("test"))
    pool.load(blob)
    return Pool(pool, observer)


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Let the fork server, a process of its own, import the fake compiler of this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    before = (descriptors(), threading.active_count(), children())
    made = make(blob=b"loaded ")
    yield made
    made.pool.close()
    assert (descriptors(), threading.active_count(), children()) == before, "nothing is left behind"


@pytest.fixture(scope="module")
def patient_pool() -> Iterator[Pool]:
    made = make(replace(LIMITS, timeout_seconds=WAIT_SECONDS))
    yield made
    made.pool.close()


def test_jobs_run_in_workers_that_stay(pool: Pool) -> None:
    assert pool.run("echo hello") == "loaded hello"
    pids = {pool.run("pid") for _ in range(10)}
    assert len(pids) <= 2
    assert str(os.getpid()) not in pids


def test_a_failure_is_an_answer_and_the_worker_stays(pool: Pool) -> None:
    error = pool.submit("fail line\n1: bad").exception(WAIT_SECONDS)
    assert isinstance(error, GrammarFailureError)
    assert (error.failure.cause, error.failure.detail) == (Cause.GRAMMAR_COMPILE_FAILED, "line 1: bad")
    assert pool.observer.lost["crash"] == 0


def test_a_bomb_is_killed_at_its_time_limit(pool: Pool) -> None:
    started = time.monotonic()
    assert pool.cause_of("spin 60") is Cause.GRAMMAR_COMPILE_TIMEOUT
    assert 0.5 <= time.monotonic() - started < 1.5
    assert pool.observer.lost["timeout"] == 1
    assert pool.run("echo on") == "loaded on"


def test_ten_bombs_cost_the_others_little(pool: Pool) -> None:
    bombs = [pool.submit(f"spin 6{n}") for n in range(10)]
    waits = []
    while not all(bomb.done() for bomb in bombs):
        started = time.monotonic()
        assert pool.run("echo me").endswith("me")
        waits.append(time.monotonic() - started)
    causes = Counter(cause_of(bomb) for bomb in bombs)
    assert causes.keys() <= {Cause.GRAMMAR_COMPILE_TIMEOUT, Cause.GRAMMAR_COMPILER_UNAVAILABLE}
    assert sorted(waits)[len(waits) // 2] < 0.1
    assert max(waits) < 1.0


def test_a_long_job_goes_on_at_the_lowest_priority_and_its_worker_ends(pool: Pool) -> None:
    future = pool.submit("spin 0.3")
    wait_for(lambda: any(priorities(pid) == [(19, os.SCHED_IDLE)] * 2 for pid in workers()))
    assert future.result(WAIT_SECONDS).blob == b"spun"
    own = str(os.getpriority(os.PRIO_PROCESS, 0))
    assert pool.run("nice") == own, "no later job pays for it"


def workers(*servers: int) -> list[int]:
    found = []
    for server in servers or children():
        with open(f"/proc/{server}/task/{server}/children") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


def priorities(pid: int) -> list[tuple[int, int]]:
    """Niceness and policy of each thread."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        return [(os.getpriority(os.PRIO_PROCESS, t), os.sched_getscheduler(t)) for t in threads]
    except OSError:
        return []


def test_a_heavy_job_starts_at_the_lowest_priority(pool: Pool) -> None:
    assert pool.run("nice " + "x" * LIMITS.heavy_weight) == "19"
    assert pool.run("policy " + "x" * LIMITS.heavy_weight) == str(os.SCHED_IDLE)
    assert pool.run("policy") == str(os.sched_getscheduler(0))


@pytest.mark.parametrize("spec", ["grow 1000000000", "swell", "big 2000000", "signal SIGABRT"])
def test_memory_is_limited(patient_pool: Pool, spec: str) -> None:
    assert patient_pool.cause_of(spec) is Cause.GRAMMAR_COMPILE_MEMORY
    assert patient_pool.run("echo on") == "on"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGTERM"])
def test_a_crash_ends_its_own_job_only(pool: Pool, name: str) -> None:
    other = pool.submit("spin 0.1")
    assert pool.cause_of(f"signal {name}") is Cause.GRAMMAR_COMPILE_FAILED
    assert other.result(WAIT_SECONDS).blob == b"spun"


def test_a_worker_inherits_nothing_but_its_connection(pool: Pool) -> None:
    pool.run("echo warm")
    assert len(pool.run("children").split()) <= 10


def test_ended_workers_are_reaped(pool: Pool) -> None:
    crashed = set()
    for _ in range(3):
        crashed.add(int(pool.run("pid")))
        assert pool.cause_of("signal SIGSEGV") is Cause.GRAMMAR_COMPILE_FAILED
    wait_for(lambda: all(is_running(pid) for pid in workers()))
    assert not any(is_running(pid) for pid in crashed)


def test_a_lost_fork_server_is_replaced() -> None:
    others = children()
    pool = make(replace(LIMITS, timeout_seconds=WAIT_SECONDS))
    try:
        assert pool.run("echo one") == "one"
        (server,) = children() - others
        old = workers(server)
        running = pool.submit("spin 60")
        wait_for(lambda: pool.observer.busy == 1)
        os.kill(server, signal.SIGKILL)
        assert cause_of(running) is Cause.GRAMMAR_COMPILER_UNAVAILABLE
        assert pool.run("echo two") == "two"
        wait_for(lambda: not any(is_running(pid) for pid in old))
        assert server not in children()
    finally:
        pool.pool.close()


def test_a_fork_server_that_never_comes_up_is_not_started_in_a_tight_loop() -> None:
    limits = LaneLimits(fast_slots=1, slow_slots=1, waiting_seconds=1.0)
    pool = make(limits, blob=b"die")
    try:
        assert pool.cause_of("echo x") is Cause.GRAMMAR_COMPILER_UNAVAILABLE
    finally:
        pool.pool.close()


def test_closing_settles_everything_and_leaves_nothing() -> None:
    before = (descriptors(), threading.active_count(), children())
    pool = make()
    assert pool.run("echo x") == "x"
    found = workers(*(children() - before[2]))
    futures = [pool.submit("spin 60") for _ in range(5)]
    pool.pool.close()
    assert {cause_of(future) for future in futures} == {Cause.GRAMMAR_COMPILER_UNAVAILABLE}
    assert pool.cause_of("echo late") is Cause.GRAMMAR_COMPILER_UNAVAILABLE
    pool.pool.close()
    wait_for(lambda: not any(is_running(pid) for pid in found))
    assert (descriptors(), threading.active_count(), children()) == before
