"""When one replica is quarantined, for how long, and what never counts against it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.replicas.blame import BLAME, Blame, blame_of
from structuredllm_gateway.replicas.breaker import Breaker, BreakerState, QuarantineRules
from structuredllm_gateway.replicas.budget import RetryBudget
from structuredllm_gateway.replicas.window import SlidingWindow
from structuredllm_gateway.validation.outcomes import Outcome

_RULES = QuarantineRules(base_seconds=30, max_seconds=240)


def test_every_class_has_a_line_in_the_table() -> None:
    assert {outcome.value for outcome in Outcome} <= set(BLAME)


def test_what_a_client_caused_never_counts() -> None:
    for outcome in ("upstream_4xx", "schema_rejected", "client_closed", "overloaded", "request_rejected"):
        assert blame_of(outcome) is Blame.NOTHING
    # Neither do an answer that was cut at the client's limit and a parser that is set up wrongly.
    assert blame_of("truncated") is Blame.GOOD
    assert blame_of("empty") is blame_of("in_reasoning") is Blame.NOTHING
    breaker = Breaker(_RULES, 0)
    assert not any(breaker.record(Blame.NOTHING, 0, structured=True) for _ in range(1000))


@pytest.mark.parametrize(("blame", "needed"), [(Blame.STRONG, 3), (Blame.SILENT, 3), (Blame.WEAK, 6)])
def test_failures_in_a_row_open_it_and_a_wrong_answer_counts_half(blame: Blame, needed: int) -> None:
    breaker = Breaker(_RULES, 0)
    assert [breaker.record(blame, 0, structured=True) for _ in range(needed)] == [False] * (needed - 1) + [
        True
    ]
    breaker = Breaker(_RULES, 0)
    for _ in range(20):
        # A good one in between begins the row anew; the ratio is not asked below min_requests.
        assert not any(breaker.record(blame, 0, structured=True) for _ in range(needed - 1))
        breaker = Breaker(_RULES, 0) if breaker.counts(0)[2] > 10 else breaker
        breaker.record(Blame.GOOD, 0, structured=True)


def test_ratio_counts_from_min_requests_on_and_within_the_window() -> None:
    rules = QuarantineRules(consecutive=100, ratio=0.25, min_requests=20, window_seconds=60)
    breaker = Breaker(rules, 0)
    for _ in range(15):
        assert not breaker.record(Blame.GOOD, 0, structured=True)
    assert [breaker.record(Blame.STRONG, 1, structured=True) for _ in range(5)] == [False] * 4 + [True]
    # The same failures outside of the window are forgotten.
    assert not breaker.record(Blame.STRONG, 90, structured=True)


def test_plain_traffic_says_nothing_about_structured_answers() -> None:
    breaker = Breaker(_RULES, 0)
    breaker.record(Blame.STRONG, 0, structured=True)
    breaker.record(Blame.STRONG, 0, structured=True)
    breaker.record(Blame.GOOD, 0, structured=False)
    assert breaker.record(Blame.STRONG, 0, structured=True)
    # But it shows whether the replica answers at all.
    breaker = Breaker(_RULES, 0)
    breaker.record(Blame.SILENT, 0, structured=False)
    breaker.record(Blame.SILENT, 0, structured=False)
    breaker.record(Blame.WEAK, 0, structured=True)
    assert not breaker.record(Blame.SILENT, 0, structured=False)


def test_time_doubles_up_to_its_limit_and_begins_anew_after_good_behaviour() -> None:
    breaker = Breaker(_RULES, 0)
    now, lengths = 0.0, []
    for _ in range(6):
        breaker.open("grammar_rejected", covers_plain=False, now=now)
        lengths.append(breaker.until - now)
        now = breaker.until
        breaker.release(now, on_trial=False)
    assert lengths == [30, 60, 120, 240, 240, 240]
    breaker.open("grammar_rejected", covers_plain=False, now=now + 240)
    assert breaker.until - breaker.since == 30


def test_failed_probe_prolongs_and_keeps_when_it_began() -> None:
    breaker = Breaker(_RULES, 0)
    breaker.open("timeout", covers_plain=True, now=0)
    breaker.probe()
    assert breaker.state is BreakerState.PROBING
    breaker.reopen(30)
    assert (breaker.state, breaker.since, breaker.until, breaker.count) == ("quarantined", 0, 90, 2)
    assert (breaker.reason, breaker.covers_plain) == ("timeout", True)


def test_what_ends_during_a_quarantine_was_begun_before_it() -> None:
    breaker = Breaker(_RULES, 0)
    breaker.open("grammar_rejected", covers_plain=False, now=0)
    assert not any(breaker.record(Blame.STRONG, 1, structured=True) for _ in range(10))
    breaker.release(30, on_trial=False)
    assert not breaker.record(Blame.STRONG, 30, structured=True)


def test_on_trial_the_next_failure_of_its_kind_is_enough_and_a_good_answer_ends_it() -> None:
    breaker = Breaker(_RULES, 0)
    breaker.open("grammar_rejected", covers_plain=False, now=0)
    breaker.release(30, on_trial=True)
    assert not breaker.record(Blame.SILENT, 30, structured=True)
    assert breaker.record(Blame.WEAK, 30, structured=True)
    breaker.open("timeout", covers_plain=True, now=31)
    breaker.release(60, on_trial=True)
    assert not breaker.record(Blame.GOOD, 60, structured=False)
    assert not breaker.on_trial
    assert not breaker.record(Blame.SILENT, 61, structured=False)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 2)),
        max_size=200,
    ),
    st.floats(1, 3600),
)
def test_window_holds_the_last_seconds_and_no_more(steps: list[tuple[float, int]], seconds: float) -> None:
    window = SlidingWindow(seconds)
    now, seen = 5000.0, list[tuple[float, int]]()
    for gap, weight in steps:
        now += gap
        window.add(now, 1, weight)
        seen.append((now, weight))
        # The oldest sixth may or may not be in it, depending on where the cells begin.
        within = [w for at, w in seen if now - at < seconds * 5 / 6 - 1e-6]
        possible = [w for at, w in seen if now - at <= seconds + 1e-6]
        assert len(within) <= window.events <= len(possible)
        assert sum(within) <= window.weight <= sum(possible)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=300), st.floats(0, 1), st.floats(0, 5)
)
def test_retries_never_exceed_their_share_of_the_traffic(
    steps: list[tuple[float, int]], ratio: float, least: float
) -> None:
    budget = RetryBudget(ratio, least)
    now, requests, granted = 100.0, list[float](), list[float]()
    for gap, wanted in steps:
        now += gap
        budget.deposit(now)
        requests.append(now)
        granted.extend(now for _ in range(wanted) if budget.withdraw(now))
        # Over any window: what was granted in it fits the requests of that window and one before.
        recent = sum(now - at < 10 * 5 / 6 - 1e-6 for at in granted)
        assert recent <= least * 10 + ratio * sum(now - at <= 20 for at in requests) + 1e-6


def test_budget_is_used_up_and_comes_back_with_traffic_and_time() -> None:
    budget = RetryBudget(0.2, 0.1)
    assert [budget.withdraw(100) for _ in range(2)] == [True, False]
    for _ in range(10):
        budget.deposit(101)
    assert [budget.withdraw(101) for _ in range(3)] == [True, True, False]
    assert budget.withdraw(120)
