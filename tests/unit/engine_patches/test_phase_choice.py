"""Whether to spread the decodes: right by the arithmetic, never slower than not to in a modelled pipeline."""

from collections.abc import Callable

import pytest

from structuredllm_engine_patches.guided.phase_choice import (
    BETWEEN_TRIALS,
    FIRST_PAUSE,
    AlwaysSpread,
    PhaseChoice,
    line_through,
    typical,
)
from tests.unit.engine_patches.pipeline_model import Pipeline

STAGES: dict[str, Callable[[int], float]] = {
    "fixed": lambda tokens: 0.1,
    "growing": lambda tokens: 0.04 + 0.003 * tokens,
    "small and growing": lambda tokens: 0.005 + 0.0002 * tokens,
    "as small as the engine core's work": lambda tokens: 0.003,
    "hardly growing": lambda tokens: 0.1 + 0.0005 * tokens,
}


def rate(
    stage: Callable[[int], float], depth: int, requests: int, choice: Callable[[int], object] | None
) -> float:
    """Tokens per second after a first answer of 16 tokens has shown the engine what pays."""
    pipeline = Pipeline(stage, depth=depth, noise=0.1, choice=choice)
    pipeline.fill(requests)
    pipeline.run_tokens(16)
    return pipeline.run_tokens(100)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("requests", [1, 2, 16, 48, 144])
@pytest.mark.parametrize("name", STAGES)
def test_is_never_slower_than_the_faster_way(name: str, requests: int, depth: int) -> None:
    stage = STAGES[name]
    together = rate(stage, depth, requests, None)
    spread = rate(stage, depth, requests, AlwaysSpread)
    chosen = rate(stage, depth, requests, PhaseChoice)
    assert chosen >= 0.98 * together
    # What is gained below a tenth is given up for not losing it again.
    assert chosen >= 0.98 * spread or spread < 1.15 * together


def test_always_spread_loses_where_the_stage_time_is_fixed_and_wins_where_it_grows() -> None:
    """Else the test above would show nothing."""
    fixed, growing = STAGES["as small as the engine core's work"], STAGES["growing"]
    assert rate(fixed, 3, 16, AlwaysSpread) < 0.9 * rate(fixed, 3, 16, None)
    assert rate(growing, 3, 16, PhaseChoice) > 1.4 * rate(growing, 3, 16, None)
    assert rate(growing, 2, 16, PhaseChoice) > 1.3 * rate(growing, 2, 16, None)


def test_follows_when_the_stage_time_or_the_number_of_requests_changes() -> None:
    now = {"stage": STAGES["fixed"]}
    pipeline = Pipeline(lambda tokens: now["stage"](tokens), choice=PhaseChoice)
    pipeline.fill(48)
    pipeline.run_tokens(40)
    for stage in ("growing", "fixed", "growing"):
        now["stage"] = STAGES[stage]
        pipeline.run_tokens(40)
        before = pipeline.spread_steps, pipeline.steps
        pipeline.run_tokens(20)
        spread = (pipeline.spread_steps - before[0]) / (pipeline.steps - before[1])
        assert spread == (1.0 if stage == "growing" else 0.0), stage
    pipeline.fill(1)
    pipeline.run_tokens(4)
    before = pipeline.spread_steps, pipeline.steps
    pipeline.run_tokens(20)
    assert pipeline.spread_steps == before[0]


def test_a_trial_that_shows_nothing_is_not_repeated_for_a_while() -> None:
    choice = PhaseChoice(3)
    trials = _trials(choice, tokens=FIRST_PAUSE, together=0.3, spread=0.3)
    assert trials == 1
    assert _trials(choice, tokens=2 * FIRST_PAUSE, together=0.3, spread=0.3) == 1
    assert _trials(choice, tokens=2 * FIRST_PAUSE, together=0.3, spread=0.3) <= 1


def test_what_is_measured_has_the_last_word_over_what_was_expected() -> None:
    choice = PhaseChoice(3)
    for _ in range(4):
        choice.observe(30, 0.3)
    assert choice.spread(30)
    choice.observe(30, 0.15)  # The first step through an empty pipeline promises much ...
    assert choice.spread(30)
    for _ in range(3):
        choice.observe(30, 0.32)  # ... and the others need longer than all together.
    assert not choice.spread(30)
    assert not choice.spread(30)


def test_a_known_line_answers_for_other_numbers_of_requests() -> None:
    choice = PhaseChoice(3)
    for _ in range(4):
        choice.observe(48, 0.6)
    assert choice.spread(48)
    choice.observe(48, 0.3)
    assert choice.gain(48) == pytest.approx(2.0)
    assert choice.gain(2) == pytest.approx(1.06, abs=0.01)
    assert choice.spread(144)
    assert not choice.spread(1)


def test_noise_makes_no_part_of_the_line_negative() -> None:
    assert line_through(30, 0.3, 10, 0.31).each == 0.0
    line = line_through(30, 0.3, 10, 0.01)
    assert line.fixed == pytest.approx(0.0)
    assert line.each == pytest.approx(0.01)
    with pytest.raises(ValueError, match="no smaller step"):
        line_through(1, 0.3, 1, 0.3)


def test_samples_of_other_numbers_of_requests_do_not_count() -> None:
    samples = [(10, 1.0), (11, 2.0), (9, 3.0), (40, 9.0)]
    assert typical(samples, 10) == 2.0
    assert typical(samples, 40) is None


def test_a_pipeline_has_stages() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        PhaseChoice(0)


def test_one_stage_and_one_request_are_never_spread() -> None:
    for depth, requests in ((1, 20), (3, 1), (3, 0)):
        choice = PhaseChoice(depth)
        for _ in range(3 * BETWEEN_TRIALS):
            assert not choice.spread(requests)
            choice.observe(requests, 0.1)


def _trials(choice: PhaseChoice, *, tokens: int, together: float, spread: float) -> int:
    """Return how often decodes were spread anew while a request got so many tokens."""
    found, before = 0, False
    for _ in range(tokens):
        now = choice.spread(30)
        found += now and not before
        before = now
        choice.observe(30, spread if now else together)
    return found
