"""One worker per key, coalescing, delays and bounded backoff; time is fake."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from structuredllm_operator.work_queue import WorkQueue, retry_delay

Work = Callable[[str], Awaitable[float | None]]


@contextlib.asynccontextmanager
async def running(work: Work, workers: int = 2) -> AsyncIterator[WorkQueue[str]]:
    """Run a queue."""
    queue: WorkQueue[str] = WorkQueue(work, workers=workers, jitter=lambda: 1.0)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def settle() -> None:
    """Let all tasks that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_adding_a_waiting_key_again_runs_it_once() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async with running(work) as queue:
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await settle()
    assert sorted(seen) == ["a", "b"]


async def test_a_key_is_never_worked_on_twice_at_once_but_once_more_after() -> None:
    door, active, most, runs = asyncio.Event(), 0, 0, 0

    async def work(_: str) -> None:
        nonlocal active, most, runs
        active += 1
        runs += 1
        most = max(most, active)
        await door.wait()
        active -= 1

    async with running(work, workers=4) as queue:
        queue.add("a")
        await settle()
        queue.add("a")
        queue.add("a")
        await settle()
        assert runs == 1
        door.set()
        await settle()
    assert (most, runs) == (1, 2)


async def test_a_slow_key_does_not_hold_up_others() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        if key == "slow":
            await asyncio.Event().wait()
        seen.append(key)

    async with running(work) as queue:
        queue.add("slow")
        queue.add("quick")
        await settle()
    assert seen == ["quick"]


@pytest.mark.looptime
async def test_delays_keep_the_earliest_time(looptime: float) -> None:
    times: list[float] = []

    async def work(_: str) -> None:
        times.append(asyncio.get_running_loop().time())

    async with running(work) as queue:
        queue.add_after("a", 30.0)
        queue.add_after("a", 5.0)
        queue.add_after("a", 20.0)
        await asyncio.sleep(100.0)
    assert times == [5.0]


@pytest.mark.looptime
async def test_failures_come_back_with_growing_delays(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    times: list[float] = []

    async def work(_: str) -> float | None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            raise RuntimeError("no")
        return None

    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(100.0)
    assert times == [0.0, 0.5, 1.5, 3.5]


@pytest.mark.looptime
async def test_work_that_asks_to_come_back_does_until_forgotten() -> None:
    runs = 0

    async def work(_: str) -> float:
        nonlocal runs
        runs += 1
        return 10.0

    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(35.0)
        assert runs == 4
        queue.forget("a")
        await asyncio.sleep(35.0)
    assert runs == 4


def test_retry_delay_is_bounded() -> None:
    assert [retry_delay(count) for count in (1, 2, 1000)] == [0.5, 1.0, 60.0]
