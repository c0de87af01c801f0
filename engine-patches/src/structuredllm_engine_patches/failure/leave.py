"""End this process for certain: with a last line, with a code that says failure, and within a time limit.

Upstream's front-end ends with code 0 after its engine died, and waits without limit for clients and child
processes; kubelet then calls the container "Completed", or never sees it end.
"""

import atexit
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h: the exit code of every process that the patches end."""

End = Callable[[int], None]


class Departure:
    """Ends this process once: at its normal exit or when the time limit is over, whichever comes first.

    Args:
        last_words: called for the line that is logged last.
        logger: where to.
        end: ends the process (`os._exit`); another one in tests.
    """

    def __init__(self, last_words: Callable[[], str], logger: logging.Logger, end: End = os._exit) -> None:
        self._last_words = last_words
        self._logger = logger
        self._end = end
        self._once = threading.Lock()
        self._left = False

    def arm(self, limit_seconds: float) -> None:
        """Have the process end within the limit, and with the right code if it ends by itself before."""
        atexit.register(self.leave)
        start_timer(limit_seconds, self.leave)

    def leave(self) -> None:
        """End the process now; a second caller waits until it has ended."""
        with self._once:
            if self._left:
                return
            self._left = True
            for child in multiprocessing.active_children():
                child.kill()
            self._logger.critical("%s", self._last_words())
            flush(self._logger)
            self._end(EXIT_CODE)


def last_line(who: str, reason: str) -> str:
    """Return the line that a process ends with; "error:" is what readers of a log's tail look for."""
    return f"fatal error: {who} died: {reason} (exit code {EXIT_CODE})"


def start_timer(seconds: float, action: Callable[[], None]) -> None:
    """Call `action` after so many seconds in a daemon thread, which holds nobody up."""

    def wait() -> None:
        time.sleep(seconds)
        action()

    threading.Thread(target=wait, name="structuredllm-leave", daemon=True).start()


def leave_now(logger: logging.Logger) -> None:
    """End this process without clean-up, which can wait for ever for a peer that is gone."""
    flush(logger)
    os._exit(EXIT_CODE)


def flush(logger: logging.Logger) -> None:
    """Flush the handlers of a logger and of its parents."""
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            handler.flush()
        current = current.parent
