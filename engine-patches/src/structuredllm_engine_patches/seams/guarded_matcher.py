"""A matcher that gives up when one token takes too long to work out.

A compile worker tries each grammar out (`compiling.trial`), but a grammar can become slow later than its
walk goes, and then every token holds up the engine core's loop. xgrammar cannot be interrupted; what can be
had is that it happens once: the next mask allows nothing, which ends the request (p009), and the grammar is
not compiled again for a while.
"""

import time
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.compiling.trial import MAX_STEP_SECONDS


def guarded(matcher_class: type[Any], on_slow: Callable[[Any, float], None]) -> Callable[..., Any]:
    """Return what stands in for xgrammar's `GrammarMatcher`.

    Args:
        matcher_class: xgrammar's.
        on_slow: told of the compiled grammar and the CPU seconds of the token, once a matcher.
    """

    class GuardedMatcher(matcher_class):  # type: ignore[misc]
        def __init__(self, compiled: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(compiled, *args, **kwargs)
            self._compiled = compiled
            self._given_up = False

        def accept_token(self, *args: Any, **kwargs: Any) -> bool:
            started = time.thread_time()
            accepted: bool = super().accept_token(*args, **kwargs)
            self._spend(time.thread_time() - started)
            return accepted

        def fill_next_token_bitmask(self, bitmask: Any, index: int = 0, *args: Any, **kwargs: Any) -> bool:
            if self._given_up:
                bitmask[index].fill_(0)
                return True
            started = time.thread_time()
            needed: bool = super().fill_next_token_bitmask(bitmask, index, *args, **kwargs)
            self._spend(time.thread_time() - started)
            return needed

        def _spend(self, seconds: float) -> None:
            if seconds > MAX_STEP_SECONDS and not self._given_up:
                self._given_up = True
                on_slow(self._compiled, seconds)

    return GuardedMatcher
