"""Picking, retrying, static endpoints."""

from __future__ import annotations

import pytest

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.upstream.endpoints import Endpoint, ValidationMode
from structuredllm_gateway.upstream.picker import LeastOutstandingPicker
from structuredllm_gateway.upstream.retry import is_retryable
from structuredllm_gateway.upstream.static import StaticEndpoint, StaticEndpoints
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.support import seeded

_A, _B, _C = (Endpoint(name, f"http://{name}") for name in "abc")


def test_least_outstanding_wins_and_leases_are_given_back() -> None:
    picker = LeastOutstandingPicker(seeded())
    with picker.lease(_A), picker.lease(_A), picker.lease(_B):
        assert picker.pick([_A, _B, _C]) == _C
        assert picker.pick([_A, _B]) == _B
        assert picker.pick([_A, _B], exclude={"b"}) == _A
        assert picker.outstanding(_A) == 2
    assert picker.outstanding(_A) == 0
    assert picker.pick([], exclude={"b"}) is None
    assert picker.pick([_A], exclude={"a"}) is None


def test_ties_are_broken_at_random() -> None:
    picker = LeastOutstandingPicker(seeded())
    assert {picker.pick([_A, _B, _C]) for _ in range(50)} == {_A, _B, _C}


def _retryable(
    outcome: Outcome, mode: ValidationMode, status: int | None = 200, committed: bool = False
) -> bool:
    return is_retryable(outcome, mode=mode, committed=committed, upstream_status=status)


@pytest.mark.parametrize("mode", list(ValidationMode))
def test_retry_matrix(mode: ValidationMode) -> None:
    always = {Outcome.GRAMMAR_REJECTED, Outcome.CONNECT_ERROR, Outcome.TIMEOUT}
    always |= {Outcome.STREAM_ERROR, Outcome.STREAM_ABORTED, Outcome.STREAM_EMPTY}
    faults = {Outcome.NOT_JSON, Outcome.SCHEMA_VIOLATION, Outcome.TRAILING_OR_LEADING_TEXT, Outcome.EMPTY}
    faults |= {Outcome.IN_REASONING, Outcome.FINISH_ABNORMAL}
    expected = always | (faults if mode is ValidationMode.ENFORCE else set())
    assert {o for o in Outcome if _retryable(o, mode)} == expected
    assert not any(_retryable(o, mode, committed=True) for o in Outcome)
    assert _retryable(Outcome.UPSTREAM_5XX, mode, 503)
    assert not _retryable(Outcome.UPSTREAM_5XX, mode, 500)


def test_static_endpoints_are_pooled_by_model_with_the_strictest_mode() -> None:
    listed = [
        StaticEndpoint("a", "http://one:1/", ValidationMode.OFF),
        StaticEndpoint("a", "http://two:1", ValidationMode.OBSERVE, name="second"),
        StaticEndpoint("b", "http://one:1"),
    ]
    view = StaticEndpoints(listed).snapshot()
    assert view.synced
    assert view.pools["a"].endpoints == (
        Endpoint("one:1", "http://one:1"),
        Endpoint("second", "http://two:1"),
    )
    assert view.pools["a"].validation is ValidationMode.OBSERVE
    with pytest.raises(SettingsError):
        StaticEndpoints([listed[0], listed[0]])
