"""Quarantine in a pool: what is kept away, how many may be missing, how it ends, how it is said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.replicas.agreement import Agreement
from structuredllm_gateway.replicas.breaker import BreakerState
from structuredllm_gateway.replicas.pool import PoolRules, Verdict
from structuredllm_gateway.replicas.recovery import Recovery
from structuredllm_gateway.replicas.replica import Load
from structuredllm_gateway.replicas.report import ReplicaReport, merged
from structuredllm_gateway.server.shared_state import FolderState
from structuredllm_gateway.upstream.endpoints import EndpointState
from structuredllm_gateway.upstream.prober import ProbeResult, ProbeVerdict
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.replica_parts import (
    Stage,
    endpoint,
    fail,
    known,
    picked,
    pool_with,
    quick,
    view_of,
)
from tests.unit.gateway.support import capturing_log, until

_REJECT, _TIMEOUT = "grammar_rejected", "timeout"


def test_broken_structured_output_keeps_structured_requests_away_and_no_others() -> None:
    pool = pool_with("ab")
    assert fail(pool, "a", _REJECT, 3) == [Verdict.NOTHING, Verdict.NOTHING, Verdict.QUARANTINED]
    assert picked(pool) == {"b"}
    assert picked(pool, structured=False) == {"a", "b"}


def test_scope_all_keeps_everything_away() -> None:
    pool = pool_with("ab", quick(covers_plain=True))
    fail(pool, "a", _REJECT, 3)
    assert picked(pool, structured=False) == {"b"}


def test_a_replica_that_does_not_answer_gets_nothing_whatever_the_scope() -> None:
    pool = pool_with("ab")
    fail(pool, "a", _TIMEOUT, 3)
    assert picked(pool) == picked(pool, structured=False) == {"b"}


def test_switched_off_nothing_is_quarantined() -> None:
    pool = pool_with("ab", PoolRules(quarantine=None))
    fail(pool, "a", _REJECT, 50)
    assert picked(pool) == {"a", "b"}


@pytest.mark.parametrize(
    ("share", "count", "most"), [(0.5, 1, 0), (0.5, 2, 1), (0.5, 5, 2), (0.1, 5, 1), (0.99, 4, 3), (0, 4, 0)]
)
def test_no_more_than_the_share_is_quarantined_and_never_the_last_one(
    share: float, count: int, most: int
) -> None:
    names = "abcde"[:count]
    pool = pool_with(names, quick(max_share=share))
    led_to = [verdict for name in names for verdict in fail(pool, name, _REJECT, 3)]
    assert led_to.count(Verdict.QUARANTINED) == len(pool.quarantined()) == most
    # Each that was spared says so, once.
    assert led_to.count(Verdict.WITHHELD) == count - most
    assert len(picked(pool)) == count - most


def test_what_was_spared_is_said_again_only_after_a_while() -> None:
    pool = pool_with("a", quick(base_seconds=30))
    assert fail(pool, "a", _REJECT, 50).count(Verdict.WITHHELD) == 1
    assert fail(pool, "a", _REJECT, 50, now=1031).count(Verdict.WITHHELD) == 1


def test_when_the_others_have_gone_a_quarantined_replica_is_better_than_none() -> None:
    pool = pool_with("ab", quick(covers_plain=True))
    loads = {f"http://{name}": replica.load for name, replica in pool.replicas.items()}
    fail(pool, "a", _REJECT, 3)
    pool.update(known("a", endpoint("b", EndpointState.TERMINATING)), loads, 1000, warm=False)
    assert picked(pool) == picked(pool, structured=False) == {"a"}
    pool.update(known("a", "b"), loads, 1000, warm=True)
    assert picked(pool) == {"b"}


def test_wrong_on_all_replicas_alike_is_the_requests_fault() -> None:
    pool = pool_with("ab")
    for name in "ab" * 20:
        assert fail(pool, name, "schema_violation", 1) == [Verdict.NOTHING]
    # One that is clearly worse than the others is not spared by that.
    pool = pool_with("ab")
    fail(pool, "b", "schema_violation", 1)
    fail(pool, "b", "ok", 19)
    assert fail(pool, "a", "schema_violation", 6)[-1] == Verdict.QUARANTINED


def test_answers_that_another_replica_gave_wrong_too_are_not_blamed() -> None:
    pool = pool_with("ab")
    replica = pool.replicas["a"]
    assert not any(pool.record(replica, "not_json", 1000, structured=True, blamed=False) for _ in range(100))
    assert replica.tries == {"not_json": 100}


def test_another_process_under_the_same_name_begins_without_a_past() -> None:
    pool = pool_with("ab")
    loads = {f"http://{name}": replica.load for name, replica in pool.replicas.items()}
    fail(pool, "a", _REJECT, 3)
    pool.update(known("a", "b"), loads, 1000, warm=False)
    assert picked(pool) == {"b"}
    pool.update(known(endpoint("a", incarnation="2"), "b"), loads, 1100, warm=False)
    assert picked(pool, now=2000) == {"a", "b"}


def test_a_late_answer_of_a_replica_that_is_gone_changes_nothing() -> None:
    pool = pool_with("ab")
    gone = pool.replicas["a"]
    pool.update(known("b"), {"http://b": Load()}, 1000, warm=False)
    assert not any(pool.record(gone, _REJECT, 1000, structured=True, blamed=True) for _ in range(10))


_steps = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from([_REJECT, _TIMEOUT, "schema_violation", "ok", "plain", "upstream_5xx"]),
    st.floats(0, 20),
    st.sampled_from(["record", "record", "record", "gate", "serve", "release"]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_steps, max_size=200), st.floats(0, 0.99), st.booleans())
def test_whatever_happens_somebody_gets_requests_while_anybody_serves(
    steps: list[tuple[str, str, float, str]], share: float, covers_plain: bool
) -> None:
    pool = pool_with("abcd", quick(max_share=share, covers_plain=covers_plain, consecutive=1))
    loads = {f"http://{name}": replica.load for name, replica in pool.replicas.items()}
    states = dict.fromkeys("abcd", EndpointState.SERVING)
    now = 1000.0
    for name, outcome, gap, action in steps:
        now += gap
        replica = pool.replicas[name]
        if action == "record":
            pool.record(replica, outcome, now, structured=True, blamed=True)
        elif action == "release":
            for due in pool.due(now):
                pool.release(due, now, on_trial=True)
        else:
            states[name] = EndpointState.GATED if action == "gate" else EndpointState.SERVING
            given_now = known(*(endpoint(one, state) for one, state in states.items()))
            pool.update(given_now, loads, now, warm=False)
        serving = {one for one, state in states.items() if state is EndpointState.SERVING}
        for structured in (True, False):
            got = pool.pick(structured=structured, key=None, now=now)
            assert (got is not None) == bool(serving)
            assert got is None or got.name in serving
        healthy = {one for one in serving if pool.replicas[one].breaker.is_closed}
        if healthy:
            assert picked(pool, now=now, tries=5) <= healthy


def _quarantined_stage() -> Stage:
    stage = Stage(known("a", "b"))
    for _ in range(3):
        stage.roster.record(stage.pool(), stage.replica("a"), Outcome.GRAMMAR_REJECTED, structured=True)
    return stage


def test_quarantine_is_logged_counted_and_shown() -> None:
    stage = _quarantined_stage()
    assert stage.metric("quarantine", model="toy", replica="a") == 1
    assert stage.metric("quarantine", model="toy", replica="b") == 0
    assert stage.metric("quarantine_events_total", model="toy", reason="grammar_rejected") == 1
    assert stage.logs[0] == {
        "level": "warning",
        "event": "replica_quarantined",
        "model": "toy",
        "replica": "a",
        "reason": "grammar_rejected",
        "scope": "structured",
        "seconds": 30,
        "count": 1,
    }
    stage.clock.now += 10
    report = ReplicaReport(
        stage.roster, clock=stage.clock, wall_clock=lambda: 1_800_000_000.0, slow_start=30
    ).build()
    first, second = report["replicas"]
    assert (first["replica"], first["namespace"], first["incarnation"]) == ("a", "ns", "1")
    assert first["tries"] == {"grammar_rejected": 3}
    assert first["window"]["wrongAnswers"] == 3
    assert first["quarantine"] == {
        "state": "quarantined",
        "scope": "StructuredOnly",
        "reason": "grammar_rejected",
        "since": "2027-01-15T07:59:50Z",
        "until": "2027-01-15T08:00:20Z",
        "count": 1,
        "onTrial": False,
        "withheld": False,
    }
    assert second["quarantine"]["state"] == "closed"
    assert report["discovery"] == {"synced": True, "stale": False, "staleSeconds": 0.0}


def test_a_quarantine_that_cannot_be_afforded_is_said() -> None:
    stage = Stage(known("a"))
    for _ in range(20):
        stage.roster.record(stage.pool(), stage.replica("a"), Outcome.TIMEOUT, structured=False)
    assert stage.events() == ["quarantine_withheld"]
    assert stage.metric("quarantine_events_total", model="toy", reason="withheld") == 1


@pytest.mark.parametrize(
    ("verdict", "state", "on_trial"),
    [
        (ProbeVerdict.HEALTHY, BreakerState.CLOSED, False),
        (ProbeVerdict.UNDECIDED, BreakerState.CLOSED, True),
        (ProbeVerdict.FAULTY, BreakerState.QUARANTINED, False),
        (ProbeVerdict.UNREACHABLE, BreakerState.QUARANTINED, False),
    ],
)
async def test_the_probe_decides_when_the_time_is_over_and_nobody_else_asks(
    verdict: ProbeVerdict, state: BreakerState, on_trial: bool
) -> None:
    stage = _quarantined_stage()
    asked: list[tuple[str, str]] = []
    released = asyncio.Event()
    looked = asyncio.Event()

    async def probe(url: str, model: str) -> ProbeResult:
        asked.append((url, model))
        await released.wait()
        return ProbeResult(verdict, "what was seen")

    async def sleep(_seconds: float) -> None:
        looked.set()
        await asyncio.sleep(0)

    recovery = Recovery(stage.roster, probe, clock=stage.clock, log=capturing_log(stage.logs), sleep=sleep)
    running = asyncio.create_task(recovery.run())
    await looked.wait()
    assert asked == []
    stage.clock.now += 30
    await until(lambda: asked)
    assert asked == [("http://a", "toy")]
    assert stage.replica("a").breaker.state is BreakerState.PROBING
    assert picked(stage.pool(), now=stage.clock.now) == {"b"}
    released.set()
    breaker = stage.replica("a").breaker
    await until(lambda: breaker.state is not BreakerState.PROBING)
    assert (breaker.state, breaker.on_trial) == (state, on_trial)
    assert len(asked) == 1
    if state is BreakerState.CLOSED:
        assert stage.metric("quarantine_events_total", model="toy", reason="released") == 1
        assert stage.metric("quarantine", model="toy", replica="a") == 0
        # It comes back with a growing share, like a new one.
        assert stage.replica("a").ready_at == stage.clock.now
        assert "a" in picked(stage.pool(), now=stage.clock.now + 60)
    else:
        assert breaker.until - stage.clock.now == 60
        assert stage.events()[-1] == "quarantine_prolonged"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_probe_that_fails_itself_leaves_no_replica_behind() -> None:
    stage = _quarantined_stage()

    async def probe(url: str, model: str) -> ProbeResult:
        raise RuntimeError("a fault of ours")

    recovery = Recovery(stage.roster, probe, clock=stage.clock, log=capturing_log(stage.logs))
    replica = stage.replica("a")
    replica.breaker.probe()
    await recovery.decide(stage.pool(), replica)
    assert (replica.breaker.is_closed, replica.breaker.on_trial) == (True, True)
    assert "probe_failed" in stage.events()


def test_models_that_are_gone_leave_no_series_and_no_load_behind() -> None:
    stage = _quarantined_stage()
    stage.source.view = view_of(known("c", model="other"))
    assert stage.metric("quarantine", model="toy", replica="a") is None
    assert stage.metric("quarantine", model="other", replica="c") == 0
    assert stage.roster.pool("toy") is None
    assert stage.roster.quarantined == 0


def test_a_source_that_changes_without_saying_so_is_seen_at_the_next_request() -> None:
    stage = Stage(known("a", "b"))
    assert picked(stage.pool()) == {"a", "b"}
    stage.source._view = view_of(known("a", endpoint("b", EndpointState.TERMINATING)))
    assert picked(stage.pool()) == {"a"}


def test_staleness_is_timed_from_its_beginning() -> None:
    stage = Stage(known("a"))
    assert stage.metric("discovery_stale_seconds") == 0
    stage.source.view = view_of(known("a"), stale=True)
    stage.clock.now += 40
    stage.source.view = view_of(known("a", "b"), stale=True)
    stage.clock.now += 2
    assert stage.metric("discovery_stale_seconds") == 42
    assert stage.pool().is_serving
    stage.source.view = view_of(known("a"))
    assert stage.metric("discovery_stale_seconds") == 0


def test_workers_of_a_pod_agree_through_the_board(tmp_path: Path) -> None:
    first, second = _quarantined_stage(), Stage(known("a", "b"))
    agreements = [
        Agreement(stage.roster, FolderState(tmp_path, number, stage.clock), stage.clock)
        for number, stage in enumerate((first, second))
    ]
    for agreement in agreements:
        agreement.exchange()
    assert picked(second.pool()) == {"b"}
    breaker = second.replica("a").breaker
    assert (breaker.adopted, breaker.reason, breaker.covers_plain) == (True, "grammar_rejected", False)
    assert breaker.until == first.replica("a").breaker.until
    # What was only taken over is not passed on, so it ends with the worker that found it.
    assert json.loads((tmp_path / "state-0.json").read_text())
    assert not (tmp_path / "state-1.json").exists()
    for stage in (first, second):
        stage.clock.now += 31
        assert [replica.name for _, replica in stage.roster.due()] == ["a"]


def test_another_worker_cannot_take_the_last_replica_or_another_process_away(tmp_path: Path) -> None:
    first = _quarantined_stage()
    others = Stage(known("a")), Stage(known(endpoint("a", incarnation="2"), "b"))
    Agreement(first.roster, FolderState(tmp_path, 0, first.clock), first.clock).exchange()
    for number, stage in enumerate(others, start=1):
        Agreement(stage.roster, FolderState(tmp_path, number, stage.clock), stage.clock).exchange()
        assert "a" in picked(stage.pool())


def test_reports_of_workers_are_one() -> None:
    reports = [
        ReplicaReport(stage.roster, clock=stage.clock, wall_clock=lambda: 0.0, slow_start=30).build()
        for stage in (Stage(known("a", "b")), _quarantined_stage(), _quarantined_stage())
    ]
    whole = merged(reports)
    first, second = whole["replicas"]
    assert (first["tries"], first["window"]["wrongAnswers"]) == ({"grammar_rejected": 6}, 6)
    assert (first["quarantine"]["state"], second["quarantine"]["state"]) == ("quarantined", "closed")
    assert whole["workers"] == 3
    assert merged([])["replicas"] == []
