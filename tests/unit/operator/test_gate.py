"""The gate speaks of one container, closes when that is replaced, and proves each container once."""

import dataclasses
from typing import Any

import pytest

from structuredllm_operator.plan.gate import BurstResult, GateRun, RunKey, backoff_seconds, pod_url
from structuredllm_operator.plan.observed import EngineReport, Gate, Pod
from structuredllm_operator.plan.plan import Plan, make_plan
from tests.unit.operator.builders import CONTAINER, info, observed, passed_gate, pod, raw_spec

KEY: RunKey = ("pod-1", CONTAINER)
REJECTED = BurstResult(False, "GrammarRejected", "9 of 24 rejected")


def plan(
    one: Pod,
    *,
    runs: dict[RunKey, GateRun] | None = None,
    now: float = 100.0,
    warmup: Any = None,
    **changes: Any,
) -> Plan:
    """Plan for one pod."""
    raw = raw_spec(**({"warmup": warmup} if warmup else {}))
    return make_plan(observed(one, raw=raw, **changes), runs or {}, now)


def test_a_ready_container_gets_a_burst_against_its_ip() -> None:
    (order,) = plan(pod()).bursts
    assert order.base_url == "http://10.0.0.1:8000"
    assert (order.requests, order.concurrency, order.model, order.attempt) == (24, 24, "toy", 1)
    assert order.key == KEY


def test_seeds_differ_between_containers_attempts_and_generations() -> None:
    one = plan(pod()).bursts[0].seed
    other = plan(pod(container_id="containerd://bbb")).bursts[0].seed
    failed = {KEY: GateRun(generation=1, attempts=1, last=REJECTED, finished_at=0.0)}
    again = plan(pod(), runs=failed, now=1000.0).bursts[0].seed
    later = plan(pod(), generation=2).bursts[0].seed
    assert len({one, other, again, later}) == 4


@pytest.mark.parametrize(
    "one",
    [
        pod(container_ready=False),
        pod(running=False, container_ready=False, waiting_reason="CrashLoopBackOff"),
        pod(container_id=""),
        pod(terminating=True),
        pod(terminating=True, gate=passed_gate("containerd://old")),
    ],
)
def test_no_burst_and_no_write_before_the_container_is_ready_or_when_the_pod_ends(one: Pod) -> None:
    found = plan(one)
    assert found.bursts == ()
    assert found.gate_writes == ()


def test_a_container_that_passed_is_left_alone_also_by_an_operator_that_knows_nothing() -> None:
    found = plan(pod(gate=passed_gate()), runs={})
    assert found.bursts == ()
    assert found.gate_writes == ()


@pytest.mark.parametrize("ready", [True, False])
def test_a_replaced_container_closes_the_gate_at_once(ready: bool) -> None:
    one = pod(container_id="containerd://new", container_ready=ready, gate=passed_gate())
    found = plan(one)
    (write,) = found.gate_writes
    assert (write.status, write.reason) == ("False", "RestartedSinceProbe")
    assert write.message.startswith("[containerd://new] ")
    assert len(found.bursts) == (1 if ready else 0)


def test_a_replaced_container_closes_the_gate_also_when_the_spec_became_invalid() -> None:
    one = pod(container_id="containerd://new", gate=passed_gate())
    found = make_plan(observed(one, raw=raw_spec(parallelism={"tensor": 0})), {}, 0.0)
    assert found.spec_error is not None
    assert [write.reason for write in found.gate_writes] == ["RestartedSinceProbe"]
    assert found.apply == ()


def test_a_burst_under_way_shows_and_is_not_started_twice() -> None:
    found = plan(pod(), runs={KEY: GateRun(generation=1, running=True)})
    assert found.bursts == ()
    assert [write.reason for write in found.gate_writes] == ["ProbeRunning"]


def test_a_passed_burst_opens_the_gate_bound_to_the_container() -> None:
    result = BurstResult(True, "BurstPassed", "24 of 24 valid")
    (write,) = plan(pod(), runs={KEY: GateRun(generation=1, attempts=1, last=result)}).gate_writes
    assert (write.status, write.reason, write.message) == (
        "True",
        "BurstPassed",
        f"[{CONTAINER}] 24 of 24 valid",
    )


def test_the_result_of_an_older_container_does_not_open_the_gate() -> None:
    result = BurstResult(True, "BurstPassed", "24 of 24 valid")
    runs = {KEY: GateRun(generation=1, attempts=1, last=result)}
    found = plan(pod(container_id="containerd://new"), runs=runs)
    assert all(write.status == "False" for write in found.gate_writes)
    assert len(found.bursts) == 1


def test_a_failed_burst_is_repeated_after_its_backoff_and_then_no_more() -> None:
    warmup = {"maxRetries": 1, "retryBackoffSeconds": 30}
    once = {KEY: GateRun(generation=1, attempts=1, last=REJECTED, finished_at=100.0)}
    early = plan(pod(), runs=once, now=110.0, warmup=warmup)
    assert early.bursts == ()
    assert early.look_again_seconds == pytest.approx(20.0)
    assert early.gate_writes[0].reason == "GrammarRejected"
    due = plan(pod(), runs=once, now=130.0, warmup=warmup)
    assert [order.attempt for order in due.bursts] == [2]
    twice = {KEY: GateRun(generation=1, attempts=2, last=REJECTED, finished_at=200.0)}
    late = plan(pod(), runs=twice, now=9000.0, warmup=warmup)
    assert late.bursts == ()
    assert late.look_again_seconds is None
    assert "given up after 2 bursts" in late.gate_writes[0].message


def test_a_changed_spec_gives_a_failed_container_new_attempts() -> None:
    spent = {KEY: GateRun(generation=1, attempts=9, last=REJECTED, finished_at=100.0)}
    assert [order.attempt for order in plan(pod(), runs=spent, generation=2).bursts] == [1]


def test_a_repeated_burst_keeps_the_failure_on_show() -> None:
    gate = Gate("False", "GrammarRejected", f"[{CONTAINER}] 9 of 24 rejected (burst 1 of 4)")
    runs = {KEY: GateRun(generation=1, attempts=1, running=True, last=REJECTED)}
    assert plan(pod(gate=gate), runs=runs).gate_writes == ()


def test_disabled_opens_the_gate_without_a_burst_and_required_asks_for_one_later() -> None:
    found = plan(pod(), warmup={"policy": "Disabled"})
    assert [(write.status, write.reason) for write in found.gate_writes] == [("True", "Disabled")]
    assert found.bursts == ()
    opened = pod(gate=Gate("True", "Disabled", f"[{CONTAINER}] no burst"))
    assert len(plan(opened).bursts) == 1


def test_best_effort_opens_the_gate_after_a_failed_burst_and_keeps_it_open() -> None:
    warmup = {"policy": "BestEffort"}
    runs = {KEY: GateRun(generation=1, attempts=1, last=REJECTED, finished_at=100.0)}
    (write,) = plan(pod(), runs=runs, now=101.0, warmup=warmup).gate_writes
    assert (write.status, write.reason) == ("True", "GrammarRejected")
    opened = pod(gate=Gate(write.status, write.reason, write.message))
    running = {KEY: dataclasses.replace(runs[KEY], running=True)}
    assert plan(opened, runs=running, warmup=warmup).gate_writes == ()
    fresh = {KEY: GateRun(generation=1, running=True)}
    assert plan(opened, runs=fresh, warmup=warmup).gate_writes == ()


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (EngineReport(refused=True, detail="refused"), "PatchMissing"),
        (EngineReport(info=info(policy="disabled")), "PatchMissing"),
        (EngineReport(info=info(world_size=1, pipeline=1)), "TopologyMismatch"),
        (EngineReport(info=info(async_scheduling=False)), "TopologyMismatch"),
    ],
)
def test_an_engine_that_is_not_what_the_spec_asks_for_gets_no_burst(
    report: EngineReport, reason: str
) -> None:
    found = plan(pod(), engines={"pod-1": report})
    assert found.bursts == ()
    assert [(write.status, write.reason) for write in found.gate_writes] == [("False", reason)]
    assert found.look_again_seconds is not None


def test_an_engine_that_did_not_report_yet_is_asked_again_before_a_burst() -> None:
    found = plan(pod(), engines={"pod-1": EngineReport(detail="timed out")})
    assert found.bursts == ()
    assert found.gate_writes == ()
    assert found.look_again_seconds == 2.0


def test_an_unchanged_condition_is_not_written_again() -> None:
    runs = {KEY: GateRun(generation=1, attempts=1, last=REJECTED, finished_at=100.0)}
    (write,) = plan(pod(), runs=runs).gate_writes
    assert plan(pod(gate=Gate(write.status, write.reason, write.message)), runs=runs).gate_writes == ()


def test_backoff_doubles_and_is_bounded() -> None:
    assert [backoff_seconds(30, count) for count in (1, 2, 3, 50)] == [30.0, 60.0, 120.0, 600.0]


def test_urls_of_both_address_families() -> None:
    assert pod_url("10.0.0.1") == "http://10.0.0.1:8000"
    assert pod_url("fd00::1") == "http://[fd00::1]:8000"
