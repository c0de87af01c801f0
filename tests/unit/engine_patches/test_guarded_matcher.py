"""A matcher that takes too long for a token allows nothing from then on."""

import time
from typing import Any

import pytest

from structuredllm_engine_patches.seams import guarded_matcher
from structuredllm_engine_patches.seams.guarded_matcher import guarded


class Row(list[int]):
    def fill_(self, value: int) -> None:
        self[:] = [value] * len(self)


class Matcher:
    """Stands in for xgrammar's, with a step of the length that the test wants."""

    def __init__(self, compiled: Any, *, override_stop_tokens: Any = None) -> None:
        self.compiled = compiled
        self.busy_seconds = 0.0

    def _work(self) -> None:
        end = time.thread_time() + self.busy_seconds
        while time.thread_time() < end:
            pass

    def accept_token(self, token: int) -> bool:
        self._work()
        return True

    def fill_next_token_bitmask(self, bitmask: Any, index: int) -> bool:
        self._work()
        bitmask[index].fill_(7)
        return True


@pytest.mark.parametrize("method", ["fill", "accept"])
def test_one_slow_token_ends_it(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(guarded_matcher, "MAX_STEP_SECONDS", 0.02)
    told: list[Any] = []
    matcher = guarded(Matcher, lambda compiled, seconds: told.append((compiled, seconds > 0.02)))(
        "grammar", override_stop_tokens=[1]
    )
    assert isinstance(matcher, Matcher)
    mask = [Row([0, 0]), Row([0, 0])]
    matcher.fill_next_token_bitmask(mask, 1)
    assert matcher.accept_token(3)
    assert (mask, told) == ([[0, 0], [7, 7]], [])
    matcher.busy_seconds = 0.04
    for _ in range(2):
        if method == "fill":
            matcher.fill_next_token_bitmask(mask, 1)
        else:
            matcher.accept_token(3)
    assert told == [("grammar", True)], "told once"
    matcher.fill_next_token_bitmask(mask, 1)
    assert mask == [[0, 0], [0, 0]]
