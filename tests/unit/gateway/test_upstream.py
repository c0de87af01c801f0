"""Retrying by class, static endpoints without a gate."""

from __future__ import annotations

import pytest

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.upstream.endpoints import Endpoint, ValidationMode
from structuredllm_gateway.upstream.retry import REPEAT, is_answered, is_retryable
from structuredllm_gateway.upstream.static import StaticEndpoint, StaticEndpoints
from structuredllm_gateway.validation.outcomes import Outcome

_ALWAYS_ONCE = {"grammar_rejected"}
_ENFORCE_ONCE = {"not_json", "schema_violation", "trailing_or_leading_text", "empty"}
_ENFORCE_ONCE |= {"in_reasoning", "finish_abnormal"}
_UNANSWERED = {"connect_error", "timeout", "stream_error", "stream_aborted", "stream_empty"}


def _retryable(outcome: str, mode: ValidationMode, status: int | None = 200, **more: bool) -> bool:
    given = {"committed": False, **more}
    return is_retryable(outcome, mode=mode, upstream_status=status, **given)


@pytest.mark.parametrize("mode", list(ValidationMode))
def test_retry_matrix(mode: ValidationMode) -> None:
    classes = {*REPEAT, *(outcome.value for outcome in Outcome)}
    enforced = _ENFORCE_ONCE if mode is ValidationMode.ENFORCE else set()
    assert {o for o in classes if _retryable(o, mode)} == _ALWAYS_ONCE | _UNANSWERED | enforced
    # Nothing is taken back that the client has seen a byte of.
    assert not any(_retryable(o, mode, status, committed=True) for o in classes for status in (200, 503))
    # A second wrong answer is the last one; what was never answered may go on.
    assert {o for o in classes if _retryable(o, mode, asked_again=True)} == _UNANSWERED
    assert _retryable("upstream_5xx", mode, 503)
    assert not _retryable("upstream_5xx", mode, 500)
    for refused in ("upstream_4xx", "schema_rejected", "truncated", "ok", "plain", "client_closed"):
        assert not _retryable(refused, mode, 503)


def test_classes_of_wrong_answers_are_told_from_those_of_none() -> None:
    assert {o for o in REPEAT if is_answered(o)} == _ALWAYS_ONCE | _ENFORCE_ONCE


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
