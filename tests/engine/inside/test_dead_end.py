"""Dead ends on the real engine core: a grammar that allows nothing ends its request, and nobody else's."""

import time

import numpy as np
import pytest

from structuredllm_engine_patches.guided import dead_end
from structuredllm_engine_patches.guided.causes import Cause, decode
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.telemetry.metrics import GRAMMAR_FAILURES, GRAMMAR_REJECTS
from tests.engine.inside.recovery.bench import Engine, Shape

DEADS = {"at once": 'root ::= "\\x07"', "after two tokens": 'root ::= "xy" "\\x07"'}


@pytest.mark.parametrize("grammar", DEADS.values(), ids=DEADS)
@pytest.mark.parametrize("shape", [Shape(), Shape(stages=1, asynchronous=False)], ids=["async", "sync"])
def test_a_dead_end_ends_its_request_at_once(shape: Shape, grammar: str, installation: Installation) -> None:
    before = installation.observation.value(GRAMMAR_FAILURES, cause=Cause.GRAMMAR_DEAD_END)
    engine = Engine(shape)
    engine.add("dead", [5, 6, 7], grammar)
    engine.add("fine", [5, 6, 7], {"type": "boolean"})
    engine.add("fine too", [5, 6, 7, 8], {"type": "integer"})
    clients = engine.run()
    failure = decode(clients["dead"].stop_reason)
    assert clients["dead"].finish == "error"
    assert bytes(clients["dead"].tokens) == (b"xy" if "xy" in grammar else b"")
    assert failure is not None
    assert failure.cause is Cause.GRAMMAR_DEAD_END
    assert clients["fine"].finish == "stop"
    assert engine.observation.value(GRAMMAR_REJECTS, backend="xgrammar") == 0
    assert installation.observation.value(GRAMMAR_FAILURES, cause=Cause.GRAMMAR_DEAD_END) - before == 1


def test_unnoticed_a_dead_end_looks_like_a_broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_end, "dead_rows", lambda bitmask: [])
    engine = Engine(Shape())
    engine.add("dead", [5, 6, 7], DEADS["at once"])
    failure = decode(engine.run()["dead"].stop_reason)
    assert failure is not None
    assert failure.cause is Cause.GRAMMAR_REJECTED
    assert engine.observation.value(GRAMMAR_REJECTS, backend="xgrammar") == 1


def test_looking_for_dead_ends_costs_little() -> None:
    """128 rows of a vocabulary of 151,936 tokens; filling one such row takes some 50 microseconds."""
    bitmask = np.zeros((128, 151_936 // 32), dtype=np.int32)
    bitmask[:, 3] = 1
    rounds = 200
    started = time.perf_counter()
    for _ in range(rounds):
        assert dead_end.dead_rows(bitmask) == []
    per_row = (time.perf_counter() - started) / rounds / 128
    assert per_row < 5e-6, f"{per_row * 1e6:.2f} microseconds a row"
