"""p031: a front-end whose engine died answers 503 for a moment, then ends, with a code that says failure.

Upstream (vLLM 0.32): the server closes as soon as one request has met the dead engine, or up to 5 s later
without one; it waits for clients and child processes without limit; and it ends with code 0, so that the
kubelet calls the container "Completed" and keeps none of its last lines. The seam starts a watch with the
server and holds the closing back until /health has said 503 for a moment.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.failure import death
from structuredllm_engine_patches.failure.cause import ended
from structuredllm_engine_patches.failure.leave import Departure, last_line
from structuredllm_engine_patches.failure.note import FailureNote

ATTRIBUTE = "_structuredllm_watch"
PERIOD_SECONDS = 0.2

ServerMethod = Callable[..., Awaitable[None]]
KeepAlive = Callable[[], bool]


def build_startup(
    original: ServerMethod, note: FailureNote, logger: logging.Logger, keep_alive: KeepAlive
) -> ServerMethod:
    """Return the replacement of `NoSignalServer.startup`; `keep_alive`: upstream was told to stay alive."""

    @wraps(original)
    async def startup(server: Any, *args: Any, **kwargs: Any) -> None:
        await original(server, *args, **kwargs)
        client = getattr(server.config.app.state, "engine_client", None)
        if getattr(client, "engine_core", None) is None or keep_alive():
            return
        watch = EngineWatch(server, client, note, logger)
        setattr(server, ATTRIBUTE, watch)
        watch.start()

    return startup


def build_shutdown(original: ServerMethod) -> ServerMethod:
    """Return the replacement of `NoSignalServer.shutdown`."""

    @wraps(original)
    async def shutdown(server: Any, *args: Any, **kwargs: Any) -> None:
        watch: EngineWatch | None = getattr(server, ATTRIBUTE, None)
        if watch is not None:
            await watch.linger()
        await original(server, *args, **kwargs)

    return shutdown


class EngineWatch:
    """Watches the engine of one server, in the server's event loop.

    Attributes:
        died_at: when the death was seen (monotonic seconds); None while the engine lives.
    """

    def __init__(self, server: Any, client: Any, note: FailureNote, logger: logging.Logger) -> None:
        self.died_at: float | None = None
        self._server = server
        self._client = client
        self._note = note
        self._logger = logger
        self._departure = Departure(self._last_words, logger)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def linger(self) -> None:
        """Return when the server may close: at once, or, after a death, when /health has said so a while."""
        self._look()
        if self.died_at is not None:
            await asyncio.sleep(death.linger_left(seen_at=self.died_at, now=time.monotonic()))
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self.died_at is None:
            await asyncio.sleep(PERIOD_SECONDS)
            self._look()
        # Upstream lets the server wait for its next failing request, or for its own look every 5 s.
        self._server.should_exit = True

    def _look(self) -> None:
        if self.died_at is None and death.is_dead(read_state(self._client)):
            self.died_at = time.monotonic()
            self._departure.arm(death.LEAVE_SECONDS)
            self._logger.error("the engine is dead: %s; /health answers 503", self._reason())

    def _reason(self) -> str:
        cause = self._note.read()
        if cause is not None:
            return cause.text
        manager = self._client.engine_core.resources.engine_manager
        codes = {} if manager is None else manager.finished_procs()
        return "; ".join(ended(name, code).text for name, code in codes.items()) or "the engine core failed"

    def _last_words(self) -> str:
        reason = self._reason()
        self._note.remove()
        return last_line("the engine", reason)


def read_state(client: Any) -> death.EngineState:
    """Return what an `AsyncLLM` knows of its engine.

    An orderly stop marks the engine as dead too, but only after it stopped the manager of the engine core
    processes, which then reports no failed process.
    """
    core = client.engine_core
    manager = core.resources.engine_manager
    if manager is None:
        stopping, failed = not core._finalizer.alive, ""
    else:
        stopping, failed = manager.manager_stopped.is_set(), manager.failed_proc_name or ""
    return death.EngineState(errored=bool(client.errored), failed_process=failed, stopping=stopping)
