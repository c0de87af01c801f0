"""Try a compiled grammar out before it is let into the engine core.

Compiling well says nothing about what follows: `((([a-z]{0,20}){0,20}){0,20}){0,20}` compiles in 14 ms, and
after a few letters xgrammar 0.2.8 needs seconds to work out which tokens may follow, on the engine core's
loop, for every token, while all requests wait. So a worker walks through the grammar first.
"""

import importlib
import random
import time
from typing import Any

STEPS = 32
"""Tokens of a walk."""

MAX_STEP_SECONDS = 0.25
"""CPU time that one token may take. Ordinary ones take 0.02 to 5 ms."""

SEED = 1
"""The same walk each time: the same grammar has the same verdict."""


class TooSlowError(ValueError):
    """Working out a token takes too long; "timed out" is what makes the cause a timeout."""


def try_out(compiled: Any) -> None:
    """Walk through a compiled grammar at random.

    Args:
        compiled: xgrammar's `CompiledGrammar`.

    Raises:
        TooSlowError: a token took longer than `MAX_STEP_SECONDS`.
    """
    numpy = importlib.import_module("numpy")
    # xgrammar's own class for it needs torch; this is what it calls.
    matcher = importlib.import_module("xgrammar.base")._core.GrammarMatcher(
        compiled._handle, None, False, -1, None
    )
    size = compiled.tokenizer_info.vocab_size
    ends = list(compiled.tokenizer_info.stop_token_ids)
    mask = numpy.full((1, (size + 31) // 32), -1, dtype=numpy.int32)
    rng = random.Random(SEED)  # noqa: S311 - a walk
    for _ in range(STEPS):
        started = time.thread_time()
        matcher.fill_next_token_bitmask(mask, 0, False)
        bits = numpy.unpackbits(mask.view(numpy.uint8), bitorder="little")[:size]
        bits[ends] = 0
        allowed = numpy.flatnonzero(bits)
        going_on = len(allowed) > 0 and matcher.accept_token(int(rng.choice(allowed)), False)
        seconds = time.thread_time() - started
        if seconds > MAX_STEP_SECONDS:
            raise TooSlowError(
                f"Working out what may follow a token timed out ({seconds:.1f} s for one token)."
            )
        if not going_on or matcher.is_terminated():
            return
