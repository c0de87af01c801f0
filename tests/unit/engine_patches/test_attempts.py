"""Attempts: a function that needs results which are not there holds no thread."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from structuredllm_engine_patches.compiling.attempts import (
    MAX_ATTEMPTS,
    AttemptExecutor,
    Wanted,
    attempt,
    is_on_event_loop,
    known_result,
    result_of,
)

WAIT = 5


class Source:
    """Gives out futures, which the test settles."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[str]] = {}
        self.asked = threading.Semaphore(0)

    def get(self, key: str) -> str:
        def start() -> "Future[str]":
            future = self.futures[key] = Future()
            self.asked.release()
            return future

        return result_of(key, start, WAIT)

    def wait_until_asked(self) -> None:
        assert self.asked.acquire(timeout=WAIT)


@pytest.fixture
def source() -> Source:
    return Source()


def test_outside_of_attempts_it_waits(source: Source) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(source.get, "a")
        source.wait_until_asked()
        source.futures["a"].set_result("A")
        assert running.result(WAIT) == "A"


def test_one_thread_serves_many_that_wait(source: Source) -> None:
    executor = AttemptExecutor(ThreadPoolExecutor(1), before_shutdown=lambda: None)
    waiting = [executor.submit(source.get, f"{n}") for n in range(20)]
    for _ in waiting:
        source.wait_until_asked()
    assert executor.submit(lambda: "free").result(WAIT) == "free"
    for n in reversed(range(20)):
        source.futures[f"{n}"].set_result(f"result {n}")
    assert [future.result(WAIT) for future in waiting] == [f"result {n}" for n in range(20)]
    executor.shutdown()


def test_each_result_is_asked_for_once_and_errors_come_out(source: Source) -> None:
    executor = AttemptExecutor(ThreadPoolExecutor(1), before_shutdown=lambda: None)

    def both() -> str:
        return source.get("a") + source.get("b")

    running = executor.submit(both)
    source.wait_until_asked()
    source.futures["a"].set_result("A")
    source.wait_until_asked()
    source.futures["b"].set_exception(ValueError("no b"))
    with pytest.raises(ValueError, match="no b"):
        running.result(WAIT)
    assert not source.asked.acquire(blocking=False)
    executor.shutdown()


def test_upstreams_handlers_of_exceptions_do_not_see_it(source: Source) -> None:
    def careful() -> str:
        try:
            return source.get("a")
        except Exception as error:
            raise AssertionError from error

    with pytest.raises(Wanted):
        attempt(careful, {})


def test_a_function_that_never_has_enough_ends() -> None:
    numbers = iter(range(1000))
    executor = AttemptExecutor(ThreadPoolExecutor(1), before_shutdown=lambda: None)
    error = executor.submit(_never(numbers)).exception(WAIT)
    assert isinstance(error, RuntimeError)
    assert str(MAX_ATTEMPTS) in str(error)
    executor.shutdown()


def _never(numbers: "Any") -> Callable[[], None]:
    def function() -> None:
        future: Future[None] = Future()
        try:
            result_of(next(numbers), lambda: future, WAIT)
        finally:
            future.set_result(None)

    return function


def test_shutdown_settles_what_waits(source: Source) -> None:
    def settle() -> None:
        source.futures["a"].set_exception(ConnectionError("stopping"))

    executor = AttemptExecutor(ThreadPoolExecutor(1), before_shutdown=settle)
    running = executor.submit(source.get, "a")
    source.wait_until_asked()
    executor.shutdown(wait=True, cancel_futures=True)
    assert isinstance(running.exception(WAIT), RuntimeError | ConnectionError)
    assert isinstance(executor.submit(source.get, "b").exception(WAIT), RuntimeError)


def test_known_results(source: Source) -> None:
    done: Future[str] = Future()
    done.set_result("x")
    assert known_result("k") is None
    assert attempt(lambda: known_result("k"), {"k": done}) is done
    assert attempt(lambda: known_result("k"), {"k": Future()}) is None


def test_the_event_loop_is_noticed() -> None:
    async def ask() -> tuple[bool, bool]:
        return is_on_event_loop(), await asyncio.get_running_loop().run_in_executor(None, is_on_event_loop)

    assert not is_on_event_loop()
    assert asyncio.run(ask()) == (True, False)
