"""Status tells the truth: reasons by rank, times move with the status, events on transitions only."""

import copy
import dataclasses
from typing import Any

import pytest

from structuredllm_operator.plan.gate import GateRun
from structuredllm_operator.plan.observed import (
    Child,
    Deployment,
    EngineReport,
    Gate,
    Observed,
    Pod,
    Termination,
)
from structuredllm_operator.plan.plan import make_plan
from structuredllm_operator.report import Report, make_report
from tests.unit.operator.builders import CONTAINER, info, observed, passed_gate, pod, raw_spec

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def report(snapshot: Observed, now: str = T0, runs: dict[Any, GateRun] | None = None) -> Report:
    """Plan and report."""
    return make_report(snapshot, make_plan(snapshot, runs or {}, 0.0), now=now, gateway_url="http://gw")


def conditions(found: Report) -> dict[str, tuple[str, str]]:
    """Return type -> (status, reason)."""
    return {one["type"]: (one["status"], one["reason"]) for one in found.status["conditions"]}


def message(found: Report, kind: str) -> str:
    """Return a condition's message."""
    return next(str(one["message"]) for one in found.status["conditions"] if one["type"] == kind)


SERVING = pod(gate=passed_gate(), ready=True)
CRASH = Termination(1, "Error", "ValueError: no such model", T0)


def test_one_serving_pod_of_the_current_revision_makes_it_ready() -> None:
    found = report(observed(SERVING))
    assert conditions(found) == {
        "SpecValid": ("True", "Accepted"),
        "WorkloadReady": ("True", "ContainersReady"),
        "TopologyVerified": ("True", "Verified"),
        "StructuredReady": ("True", "BurstPassed"),
        "Ready": ("True", "AllServing"),
        "Progressing": ("False", "RolloutComplete"),
    }
    assert found.status["servingReplicas"] == found.status["readyReplicas"] == found.status["replicas"] == 1
    assert found.status["selector"] == "app.kubernetes.io/component=engine,structuredllm.io/name=toy"
    assert found.ready


@pytest.mark.parametrize(
    "one",
    [
        dataclasses.replace(SERVING, ready=False),
        dataclasses.replace(SERVING, container_id="containerd://new"),
        dataclasses.replace(SERVING, gate=None),
        dataclasses.replace(SERVING, terminating=True),
        dataclasses.replace(SERVING, revision="old"),
        dataclasses.replace(SERVING, container_ready=False, ready=False),
    ],
)
def test_never_ready_without_a_proof_for_the_running_container_of_the_current_revision(one: Pod) -> None:
    assert not report(observed(one)).ready


def test_a_status_that_did_not_change_is_not_written_and_announces_nothing() -> None:
    first = report(observed(SERVING))
    assert first.changed
    again = report(observed(SERVING, status=copy.deepcopy(dict(first.status))), now=T1)
    assert not again.changed
    assert again.events == ()


def test_transition_times_move_only_with_the_status() -> None:
    first = report(observed(pod()))
    second = report(observed(SERVING, status=dict(first.status)), now=T1)
    times = {one["type"]: one["lastTransitionTime"] for one in second.status["conditions"]}
    assert times["SpecValid"] == T0
    assert times["Ready"] == T1


def test_every_condition_carries_the_generation_that_was_read() -> None:
    found = report(observed(SERVING, generation=7))
    assert found.status["observedGeneration"] == 7
    assert {one["observedGeneration"] for one in found.status["conditions"]} == {7}


def test_events_come_on_transitions_with_a_type_that_fits() -> None:
    waiting = report(observed())
    assert [(note.type, note.reason) for note in waiting.events] == [
        ("Normal", "Accepted"),
        ("Normal", "RolloutInProgress"),
    ]
    crashed = pod(
        container_ready=False, running=False, last_termination=CRASH, waiting_reason="CrashLoopBackOff"
    )
    after = report(observed(crashed, status=dict(waiting.status)), now=T1)
    assert ("Warning", "CrashLoop") in [(note.type, note.reason) for note in after.events]
    assert all(len(note.message) <= 1024 for note in after.events)


@pytest.mark.parametrize(
    ("one", "reason", "words"),
    [
        (
            pod(
                container_ready=False,
                running=False,
                waiting_reason="CrashLoopBackOff",
                last_termination=CRASH,
            ),
            "CrashLoop",
            "ValueError: no such model",
        ),
        (pod(container_ready=False, last_termination=CRASH), "EngineCrashed", "exit code 1"),
        (
            pod(
                container_ready=False,
                running=False,
                waiting_reason="ErrImagePull",
                waiting_message="not found",
            ),
            "ImagePullFailed",
            "not found",
        ),
        (
            Pod("p", "u", revision=pod().revision, unschedulable="0/3 nodes: Insufficient nvidia.com/gpu"),
            "Unschedulable",
            "Insufficient nvidia.com/gpu",
        ),
        (pod(container_ready=False), "Pending", "loading the model"),
    ],
)
def test_a_workload_that_does_not_run_says_why_in_the_words_of_who_knows(
    one: Pod, reason: str, words: str
) -> None:
    found = report(observed(one))
    assert conditions(found)["WorkloadReady"] == ("False", reason)
    assert conditions(found)["Ready"] == ("False", reason)
    assert words in message(found, "Ready")


def test_pods_that_cannot_be_made_are_told_in_the_api_servers_words() -> None:
    deployment = Deployment(replica_failure='pods "x" is forbidden: exceeded quota')
    found = report(observed(deployment=deployment))
    assert conditions(found)["WorkloadReady"] == ("False", "ReplicaFailure")
    assert "exceeded quota" in message(found, "WorkloadReady")


def test_a_grammar_reject_outranks_pods_that_are_still_loading() -> None:
    rejected = pod(gate=Gate("False", "GrammarRejected", f"[{CONTAINER}] 9 of 24 rejected", T0))
    loading = pod(name="other", uid="pod-2", container_id="containerd://b", container_ready=False)
    found = report(observed(rejected, loading, raw=raw_spec(replicas=2)))
    assert conditions(found)["StructuredReady"] == ("False", "GrammarRejected")
    assert conditions(found)["Ready"] == ("False", "GrammarRejected")
    assert "spec.engine.patches" in message(found, "StructuredReady")
    assert found.gate_failing
    assert found.status["lastFailure"] == {
        "pod": "toy-engine-x",
        "reason": "GrammarRejected",
        "message": "9 of 24 rejected",
        "time": T0,
    }


def test_a_failure_stays_on_record_after_recovery() -> None:
    crashed = report(observed(pod(container_ready=False, last_termination=CRASH)))
    recovered = report(observed(SERVING, status=dict(crashed.status)), now=T1)
    assert recovered.ready
    assert recovered.status["lastFailure"] == crashed.status["lastFailure"]


def test_a_missing_patch_keeps_it_from_ready_only_when_patches_are_required() -> None:
    gone = {"pod-1": EngineReport(refused=True)}
    required = report(observed(SERVING, engines=gone))
    assert conditions(required)["Ready"] == ("False", "PatchMissing")
    raw = raw_spec(engine={"image": "example/engine:1", "patches": "Optional"})
    one = dataclasses.replace(SERVING, revision=_revision(raw))
    optional = report(observed(one, engines=gone, raw=raw))
    assert conditions(optional)["TopologyVerified"] == ("Unknown", "NotReported")
    assert optional.ready


def _revision(raw: dict[str, Any]) -> str:
    return make_plan(observed(raw=raw), {}, 0.0).revision


def test_best_effort_serves_but_says_that_the_burst_failed() -> None:
    gate = Gate("True", "GrammarRejected", f"[{CONTAINER}] 9 of 24 rejected", T0)
    one = dataclasses.replace(SERVING, gate=gate)
    found = report(observed(one, raw=raw_spec(warmup={"policy": "BestEffort", "maxRetries": 0})))
    assert conditions(found)["StructuredReady"] == ("False", "GrammarRejected")
    assert conditions(found)["Ready"] == ("True", "AllServing")


def test_an_invalid_spec_changes_nothing_and_names_the_field() -> None:
    found = report(observed(SERVING, raw=raw_spec(parallelism={"tensor": 0})))
    assert conditions(found) == {"SpecValid": ("False", "InvalidSpec"), "Ready": ("False", "InvalidSpec")}
    assert "spec.parallelism.tensor" in message(found, "SpecValid")


def test_a_foreign_child_is_a_name_conflict() -> None:
    snapshot = observed(children=(Child("Service", owned=False),))
    assert make_plan(snapshot, {}, 0.0).apply == ()
    assert conditions(report(snapshot))["Ready"] == ("False", "NameConflict")


def test_scaled_to_zero_has_no_conditions_about_engines() -> None:
    found = report(observed(raw=raw_spec(replicas=0)))
    assert conditions(found)["Ready"] == ("True", "ScaledToZero")
    assert "StructuredReady" not in conditions(found)
    assert "TopologyVerified" not in conditions(found)


def test_a_rollout_shows_until_the_old_pods_are_gone() -> None:
    old = dataclasses.replace(SERVING, name="old", uid="pod-0", revision="old")
    found = report(observed(SERVING, old))
    assert conditions(found)["Progressing"] == ("True", "RolloutInProgress")
    exceeded = report(observed(pod(), deployment=Deployment(deadline_exceeded="timed out progressing")))
    assert conditions(exceeded)["Progressing"] == ("False", "ProgressDeadlineExceeded")


def test_long_messages_are_cut() -> None:
    long = Termination(1, "Error", "ValueError: " + "x" * 5000, T0)
    found = report(observed(pod(container_ready=False, last_termination=long)))
    assert all(len(one["message"]) <= 1024 for one in found.status["conditions"])


def test_status_shows_what_the_engine_reports() -> None:
    found = report(observed(SERVING, engines={"pod-1": EngineReport(info=info(vllm_version="0.33"))}))
    assert found.status["engine"]["vllmVersion"] == "0.33"
    assert found.status["engine"]["patches"] == ["p001"]
