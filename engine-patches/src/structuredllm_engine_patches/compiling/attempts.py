"""Get a job's result in the middle of somebody else's function without keeping its thread waiting.

The function is run as an attempt: where it needs a result that is not there, the attempt is given up
(`Wanted`) and made anew once the result is there. A thread is then only ever used, never blocked, so that
ten compilations that hang cannot use up a thread pool.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any, TypeVar

Value = TypeVar("Value")

MAX_ATTEMPTS = 8
"""Each attempt but the last needed one more result; nobody needs so many."""

RESULTS: "ContextVar[dict[Hashable, Future[Any]] | None]" = ContextVar("structuredllm_results", default=None)
"""The results of the current attempt; None outside of attempts."""


class Wanted(BaseException):
    """The attempt needs this result first. Not an `Exception`: functions in between catch those.

    Attributes:
        future: ends when the function can be attempted anew.
    """

    def __init__(self, future: "Future[Any]") -> None:
        super().__init__("a result that is not there yet")
        self.future = future


def result_of(key: Hashable, start: "Callable[[], Future[Value]]", wait_seconds: float) -> Value:
    """Return the result of `key`, and start what makes it when nobody has.

    Outside of attempts it waits, `wait_seconds` at the most.

    Raises:
        Wanted: it is not there yet; leave it to the attempt.
        Exception: whatever the future ended with.
    """
    results = RESULTS.get()
    if results is None:
        return start().result(wait_seconds)
    future = results.get(key)
    if future is None:
        future = results[key] = start()
    if not future.done():
        raise Wanted(future)
    value: Value = future.result()
    return value


def known_result(key: Hashable) -> "Future[Any] | None":
    """Return the future of a result that the current attempt has already."""
    future = (RESULTS.get() or {}).get(key)
    return future if future is not None and future.done() else None


def attempt(function: Callable[[], Value], results: "dict[Hashable, Future[Any]]") -> Value:
    """Run an attempt with the results so far.

    Raises:
        Wanted: another result is needed first.
    """
    token = RESULTS.set(results)
    try:
        return function()
    finally:
        RESULTS.reset(token)


def is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, which nothing may hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AttemptExecutor(Executor):
    """Runs functions as attempts in the threads of another executor.

    Args:
        threads: the other executor; shut down with this one.
        before_shutdown: called first at a shutdown; ends whatever futures are waited for.
    """

    def __init__(self, threads: Executor, before_shutdown: Callable[[], None]) -> None:
        self._threads = threads
        self._before_shutdown = before_shutdown

    def submit(self, fn: Callable[..., Value], /, *args: Any, **kwargs: Any) -> "Future[Value]":
        """Return the future of `fn(*args, **kwargs)`."""
        outer: Future[Value] = Future()
        outer.set_running_or_notify_cancel()
        self._next(outer, lambda: fn(*args, **kwargs), {}, MAX_ATTEMPTS)
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End everything."""
        self._before_shutdown()
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _next(
        self,
        outer: "Future[Value]",
        function: Callable[[], Value],
        results: "dict[Hashable, Future[Any]]",
        left: int,
    ) -> None:
        try:
            inner = self._threads.submit(self._run, outer, function, results, left)
        except RuntimeError as error:
            outer.set_exception(error)
            return

        def settle_if_cancelled(done: "Future[None]") -> None:
            if done.cancelled():
                outer.set_exception(RuntimeError("shut down before the attempt was made"))

        inner.add_done_callback(settle_if_cancelled)

    def _run(
        self,
        outer: "Future[Value]",
        function: Callable[[], Value],
        results: "dict[Hashable, Future[Any]]",
        left: int,
    ) -> None:
        try:
            value = attempt(function, results)
        except Wanted as wanted:
            if left == 0:
                outer.set_exception(RuntimeError(f"no result after {MAX_ATTEMPTS} attempts"))
            else:
                wanted.future.add_done_callback(lambda _: self._next(outer, function, results, left - 1))
        except BaseException as error:  # as a ThreadPoolExecutor does
            outer.set_exception(error)
        else:
            outer.set_result(value)
