"""The tries of one request: every class, in every form and mode; the budget; who is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from structuredllm_gateway.errors import GatewayError, NoEndpointError
from structuredllm_gateway.openai.requests import CompletionRequest, Structure
from structuredllm_gateway.relay.attempts import Attempts
from structuredllm_gateway.relay.exchange import Exchange, Incoming, Record, Route, TryResult
from structuredllm_gateway.relay.tries import Tries
from structuredllm_gateway.replicas.pool import PoolRules
from structuredllm_gateway.upstream.endpoints import Endpoint, EndpointState, ModelPool, ValidationMode
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.replica_parts import Stage, endpoint, known, view_of
from tests.unit.gateway.support import settings_with

_ENFORCE = ValidationMode.ENFORCE


class ScriptedTries:
    """Gives the results in turn, and notes who was asked in which form with which bytes."""

    def __init__(self, *results: TryResult) -> None:
        self.results = list(results)
        self.asked: list[tuple[str, str, bytes]] = []

    async def whole(self, exchange: Exchange, target: Endpoint) -> TryResult:
        self.asked.append((target.name, "whole", exchange.body))
        return self.results.pop(0)

    async def stream(self, exchange: Exchange, target: Endpoint, _sink: Any) -> TryResult:
        self.asked.append((target.name, "stream", exchange.body))
        return self.results.pop(0)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]


def _result(outcome: str, *, committed: bool = False, status: int | None = 200) -> TryResult:
    return TryResult(Outcome(outcome), error=GatewayError("x"), committed=committed, upstream_status=status)


class Run:
    """One request over scripted tries."""

    def __init__(
        self,
        *results: TryResult,
        mode: ValidationMode = _ENFORCE,
        stream: bool = False,
        is_structured: bool = True,
        replicas: str = "abc",
        rules: PoolRules | None = None,
        stage: Stage | None = None,
        **upstream: Any,
    ) -> None:
        self.stage = stage or Stage(known(*replicas), rules=rules)
        self.tries = ScriptedTries(*results)
        settings = settings_with(upstream={"max_attempts": 3, **upstream}, warmup={"max_wait_seconds": 0})
        self.attempts = Attempts(
            self.stage.roster,
            cast(Tries, self.tries),
            settings=settings,
            metrics=self.stage.metrics,
            clock=self.stage.clock,
        )
        structure = Structure({"type": "object"}, "/x") if is_structured else None
        self.record = Record(started=self.stage.clock.now)
        self.exchange = Exchange(
            Incoming(Route.CHAT, "id", {}, cast(Any, None)),
            CompletionRequest("toy", stream, structure),
            b"the body",
            ModelPool("toy", mode),
            None,
            self.stage.clock.now + 60,
            self.record,
        )

    async def __call__(self) -> TryResult:
        return await self.attempts.run(self.exchange, cast(Any, None))

    def tries_of(self, name: str) -> dict[str, int]:
        return self.stage.replica(name).tries


_ONCE = {"grammar_rejected"}
_ENFORCED = {"not_json", "schema_violation", "trailing_or_leading_text", "empty", "in_reasoning"}
_ENFORCED |= {"finish_abnormal"}
_UNANSWERED = {"connect_error", "timeout", "stream_error", "stream_aborted", "stream_empty"}


@pytest.mark.parametrize("outcome", [outcome.value for outcome in Outcome])
@pytest.mark.parametrize("form", ["whole", "stream before bytes", "stream after bytes"])
@pytest.mark.parametrize("mode", list(ValidationMode))
async def test_matrix(outcome: str, form: str, mode: ValidationMode) -> None:
    stream, committed = form != "whole", form == "stream after bytes"
    expected = 1
    if not committed:
        if outcome in _ONCE or (outcome in _ENFORCED and mode is _ENFORCE):
            expected = 2
        elif outcome in _UNANSWERED:
            expected = 3
    run = Run(*[_result(outcome, committed=committed) for _ in range(3)], mode=mode, stream=stream)
    result = await run()
    assert result.outcome == outcome
    assert len(run.tries.asked) == run.record.attempts == expected
    # Each on another replica, each with the whole request.
    assert len(set(run.tries.names)) == expected
    assert {(form, body) for _, form, body in run.tries.asked} == {
        ("stream" if stream else "whole", b"the body")
    }
    assert run.record.retried_for == [outcome] * (expected - 1)
    assert run.record.replica == run.tries.names[-1]
    if expected > 1:
        retried = run.stage.metric("upstream_attempts_total", model="toy", reason=outcome)
        assert retried == expected - 1


@pytest.mark.parametrize(("status", "tries"), [(500, 1), (502, 1), (503, 3), (None, 1)])
async def test_an_engine_error_is_tried_again_only_where_the_engine_did_not_begin(
    status: int | None, tries: int
) -> None:
    run = Run(*[_result("upstream_5xx", status=status) for _ in range(3)])
    await run()
    assert run.record.attempts == tries


async def test_a_wrong_answer_is_asked_for_once_more_also_after_a_broken_connection() -> None:
    run = Run(*[_result(name) for name in ("connect_error", "not_json", "grammar_rejected")], max_attempts=5)
    assert (await run()).outcome is Outcome.GRAMMAR_REJECTED
    assert run.record.retried_for == ["connect_error", "not_json"]
    run = Run(*[_result(name) for name in ("not_json", "timeout", "ok")], max_attempts=5)
    assert (await run()).outcome is Outcome.OK
    run = Run(*[_result(name) for name in ("not_json", "not_json", "ok")], max_attempts=5)
    assert (await run()).outcome is Outcome.NOT_JSON


async def test_a_wrong_answer_is_not_asked_for_again_on_the_same_replica() -> None:
    run = Run(_result("not_json"), replicas="a")
    assert (await run()).outcome is Outcome.NOT_JSON
    run = Run(_result("connect_error"), _result("ok"), replicas="a")
    assert (await run()).outcome is Outcome.OK
    assert run.tries.names == ["a", "a"]


async def test_nothing_is_tried_after_the_deadline_of_the_request() -> None:
    run = Run(_result("timeout"), _result("ok"))
    run.exchange = replace(run.exchange, deadline=run.stage.clock.now)
    assert (await run()).outcome is Outcome.TIMEOUT


async def test_a_used_up_budget_ends_the_retries_and_is_counted() -> None:
    rules = PoolRules(retry_ratio=0.1, retry_min_per_second=0, quarantine=None)
    stage = Stage(known("a", "b"), rules=rules)
    retries = 0
    for _ in range(100):
        run = Run(_result("grammar_rejected"), _result("ok"), stage=stage)
        await run()
        retries += run.record.attempts - 1
    # Ten in a hundred, and not one more.
    assert retries == 10
    assert stage.metric("retry_budget_exhausted_total", model="toy") == 90
    # With time the old requests leave the window, and the old retries with them.
    stage.clock.now += 60
    run = Run(_result("grammar_rejected"), stage=stage)
    await run()
    assert run.record.attempts == 1


async def test_the_replica_is_to_blame_when_another_one_did_the_same_right() -> None:
    stage = Stage(known("a", "b"))
    for _ in range(40):
        run = Run(_result("schema_violation"), _result("ok"), stage=stage, replicas="ab")
        # The one that is broken is asked first.
        with stage.replica("b"):
            await run()
        if run.tries.names[0] == "b":
            break
    assert not stage.replica("a").breaker.is_closed
    assert stage.replica("b").breaker.is_closed


async def test_no_replica_is_to_blame_when_all_were_wrong() -> None:
    stage = Stage(known("a", "b"), rules=PoolRules(retry_ratio=1))
    for _ in range(100):
        await Run(_result("schema_violation"), _result("schema_violation"), stage=stage)()
    for name in "ab":
        assert stage.replica(name).breaker.is_closed
        assert stage.replica(name).breaker.counts(stage.clock.now)[1] == 0
        assert stage.replica(name).tries["schema_violation"] > 0


async def test_a_second_replica_is_not_blamed_for_the_deadline_that_the_first_used_up() -> None:
    stage = Stage(known("a", "b"))

    class Slow(ScriptedTries):
        async def whole(self, exchange: Exchange, target: Endpoint) -> TryResult:
            stage.clock.now += 40
            return await super().whole(exchange, target)

    for _ in range(2):
        run = Run(stage=stage)
        run.tries = Slow(_result("timeout"), _result("timeout"))
        run.attempts._tries = cast(Tries, run.tries)
        with stage.replica("b"):
            await run()
    assert stage.replica("a").breaker.counts(stage.clock.now)[3] >= 1
    assert stage.replica("b").breaker.counts(stage.clock.now)[3] == 0
    assert stage.replica("b").tries == {"timeout": 2}


async def test_a_repair_is_one_try_that_blames_nobody_for_a_wrong_answer() -> None:
    stage = Stage(known("a", "b"))
    for _ in range(20):
        run = Run(_result("not_json"), stage=stage)
        run.exchange = replace(run.exchange, is_repair=True)
        await run()
        assert run.record.attempts == 1
    assert stage.metric("upstream_attempts_total", model="toy", reason="repair") == 20
    assert [stage.replica(name).breaker.counts(stage.clock.now)[1] for name in "ab"] == [0, 0]


async def test_connect_errors_are_reported_to_discovery() -> None:
    run = Run(_result("connect_error"), _result("ok"), replicas="ab")
    await run()
    assert run.stage.source.suspected == run.tries.names[:1]


async def test_a_replica_that_leaves_between_two_tries_is_not_asked() -> None:
    stage = Stage(known("a", "b", "c"))

    class Leaving(ScriptedTries):
        async def whole(self, exchange: Exchange, target: Endpoint) -> TryResult:
            names = [name for name in "abc" if name != target.name]
            leaving = endpoint(names[0], EndpointState.TERMINATING)
            stage.source.view = view_of(known(target.name, leaving, names[1]))
            self.expected = names[1]
            return await super().whole(exchange, target)

    run = Run(stage=stage)
    tries = Leaving(_result("grammar_rejected"), _result("ok"))
    run.attempts._tries = cast(Tries, tries)
    await run()
    assert len(tries.names) == 2
    assert tries.names[1] in "abc".replace(tries.names[0], "")


async def test_no_replica_is_an_error_that_is_no_try() -> None:
    run = Run(stage=Stage(known(endpoint("a", EndpointState.GATED))))
    with pytest.raises(NoEndpointError):
        await run()
    assert run.record.attempts == 0
