"""Deadlines over one timer: they interrupt like `asyncio.timeout`, and cost no timer each."""

from __future__ import annotations

import asyncio

import pytest

from structuredllm_gateway.relay.deadlines import Deadlines


async def test_what_takes_too_long_is_a_timeout_and_the_task_goes_on() -> None:
    deadlines = Deadlines()
    for _ in range(2):
        with pytest.raises(TimeoutError), deadlines.within(0.01):
            await asyncio.sleep(10)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_deadline_that_has_passed_already_interrupts_the_first_wait() -> None:
    with pytest.raises(TimeoutError), Deadlines().within(0):
        await asyncio.sleep(10)


async def test_the_nearest_of_many_comes_first_and_each_interrupts_its_own() -> None:
    deadlines = Deadlines()
    ended: list[float] = []

    async def wait(seconds: float) -> None:
        try:
            with deadlines.within(seconds):
                await asyncio.sleep(10)
        except TimeoutError:
            ended.append(seconds)

    async def quick() -> None:
        with deadlines.within(0.02):
            await asyncio.sleep(0)
        ended.append(0)

    await asyncio.gather(wait(0.06), quick(), wait(0.03), wait(0.09))
    assert ended == [0, 0.03, 0.06, 0.09]


async def test_a_cancelled_task_is_cancelled_and_not_late() -> None:
    deadlines = Deadlines()

    async def wait() -> None:
        with deadlines.within(10):
            await asyncio.sleep(10)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_passes() -> None:
    with pytest.raises(KeyError), Deadlines().within(10):
        raise KeyError


async def test_one_timer_serves_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    set_timers: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *arguments: object) -> asyncio.TimerHandle:
        set_timers.append(when)
        return call_at(when, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    deadlines = Deadlines()
    for _ in range(100):
        with deadlines.within(30):
            pass
    assert len(set_timers) == 1


def test_another_loop_has_its_own_timer() -> None:
    deadlines = Deadlines()

    async def late() -> bool:
        try:
            with deadlines.within(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            return True
        return False

    async def left() -> None:
        with deadlines.within(30):
            pass

    asyncio.run(left())
    assert asyncio.run(late())
