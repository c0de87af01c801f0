"""Pods of one engine over several nodes: counted once, gated once, and the cause of a crash is found."""

import dataclasses
from typing import Any, cast

import pytest

from structuredllm_operator.kube.client import LEADER_WORKER_SET, POD, STRUCTURED_LLM
from structuredllm_operator.kube.served import KEEP_SECONDS, ServedKinds
from structuredllm_operator.observe import observe, to_pod
from structuredllm_operator.plan import groups
from structuredllm_operator.plan.observed import Child, Group, Observed, Pod, Termination
from structuredllm_operator.plan.plan import make_plan
from structuredllm_operator.report import Report, make_report
from tests.unit.operator.builders import CONTAINER, observed, passed_gate, pod, raw_spec, revision

RAW = raw_spec(multiNode={"nodeCount": 3})
T0, T1, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", "2026-01-01T01:00:00Z"
LOST_LEADER = Termination(
    1,
    "Error",
    "fatal error: this node of the engine died: rank 1 (pipeline stage 1): the connection to the engine's"
    " leader broke (exit code 41)",
    T0,
)
NO_MODEL = Termination(1, "Error", "ValueError: no such model", T1)


def member(index: int, group: str = "0", **changes: Any) -> Pod:
    """Return a running pod of a group of three."""
    values: dict[str, Any] = {
        "name": f"toy-engine-{group}" + (f"-{index}" if index else ""),
        "uid": f"pod-{group}-{index}",
        "revision": revision(RAW),
        "group": Group(key=group, index=index, size=3),
        **changes,
    }
    return pod(**values)


def leader(group: str = "0", **changes: Any) -> Pod:
    """Return a leader that passed the gate."""
    return member(0, group, gate=passed_gate(), ready=True, **changes)


def snapshot(*pods: Pod, **changes: Any) -> Observed:
    """Return a snapshot of these pods, put together as `observe` does."""
    answering, workers = groups.join(pods)
    return observed(*answering, raw={**RAW, **changes.pop("spec", {})}, workers=workers, **changes)


def report(found: Observed, now: str = T1) -> Report:
    """Plan and report."""
    return make_report(found, make_plan(found, {}, 0.0), now=now)


def condition(found: Report, kind: str) -> tuple[str, str, str]:
    """Return (status, reason, message)."""
    one = next(entry for entry in found.status["conditions"] if entry["type"] == kind)
    return one["status"], one["reason"], one["message"]


def test_replicas_count_groups() -> None:
    pods = [one for key in ("0", "1") for one in (leader(key), member(1, key), member(2, key))]
    found = report(snapshot(*pods, spec={"replicas": 2}))
    assert [
        found.status[key] for key in ("replicas", "readyReplicas", "servingReplicas", "updatedReplicas")
    ] == [2] * 4
    assert found.ready
    assert condition(found, "Progressing")[1] == "RolloutComplete"


@pytest.mark.parametrize(
    "lost",
    [
        (),
        (member(2, terminating=True),),
        (member(2, running=False, container_ready=False),),
        (member(2, "1"),),
    ],
)
def test_the_gate_of_a_group_that_lacks_a_pod_closes(lost: tuple[Pod, ...]) -> None:
    found = snapshot(leader(), member(1), *lost)
    (write,) = make_plan(found, {}, 0.0).gate_writes
    assert (write.pod_name, write.status, write.reason) == ("toy-engine-0", "False", "GroupIncomplete")
    assert "1 of the 3 pods of its group do not run (toy-engine-0-2)" in write.message
    said = report(found)
    assert not said.ready
    assert said.status["readyReplicas"] == said.status["servingReplicas"] == 0
    assert condition(said, "StructuredReady")[:2] == ("False", "GroupIncomplete")


def test_a_whole_group_is_gated_once_and_workers_never() -> None:
    plan = make_plan(snapshot(member(0), member(1), member(2)), {}, 0.0)
    assert [order.pod_name for order in plan.bursts] == ["toy-engine-0"]
    assert plan.gate_writes == ()


def test_a_starting_group_is_not_asked() -> None:
    """Leaders are ready only when all nodes have met; nothing is written before."""
    plan = make_plan(snapshot(member(0, container_ready=False), member(1)), {}, 0.0)
    assert (plan.bursts, plan.gate_writes) == ((), ())


def test_why_a_worker_does_not_run_is_said() -> None:
    waiting = member(1, running=False, container_ready=False, unschedulable="0/3 nodes: Insufficient gpu")
    found = report(snapshot(member(0, container_ready=False), waiting, member(2)))
    status, reason, message = condition(found, "WorkloadReady")
    assert (status, reason) == ("False", "Unschedulable")
    assert "toy-engine-0-1" in message
    assert "Insufficient gpu" in message


def test_the_cause_is_named_and_not_what_follows_from_it() -> None:
    down: dict[str, Any] = {"running": False, "container_ready": False}
    crashed = member(2, **down, last_termination=NO_MODEL)
    followed = member(1, **down, last_termination=LOST_LEADER)
    found = report(snapshot(member(0, container_ready=False), followed, crashed))
    assert "no such model" in condition(found, "WorkloadReady")[2]
    assert found.status["lastFailure"]["pod"] == "toy-engine-0-2"


def test_what_a_pod_said_survives_the_recreation_of_its_group() -> None:
    """The controller deletes all pods within moments; WorkloadReady keeps the reason while it is fresh."""
    ending: dict[str, Any] = {"terminating": True, "restart_count": 1, "container_ready": False}
    crashed = leader(**ending, last_termination=NO_MODEL)
    followed = member(1, **ending, last_termination=LOST_LEADER)
    first = report(snapshot(crashed, followed))
    assert first.status["lastFailure"] == {
        "pod": "toy-engine-0",
        "reason": "EngineCrashed",
        "message": "the engine ended with exit code 1: ValueError: no such model",
        "time": T1,
    }
    fresh = snapshot(member(0, container_ready=False), status=first.status)
    status, reason, message = condition(report(fresh), "WorkloadReady")
    assert (status, reason) == ("False", "EngineCrashed")
    assert "made anew as a whole after pod toy-engine-0: the engine ended with exit code 1" in message
    assert condition(report(fresh, LATER), "WorkloadReady")[1] == "Pending"


def test_a_pod_that_ends_as_it_should_is_no_failure() -> None:
    """Workers end with a failing code when their leader has ended, also at a scale-down."""
    ending = member(1, terminating=True, last_termination=LOST_LEADER, container_ready=False)
    assert "lastFailure" not in report(snapshot(ending)).status


def test_a_missing_crd_is_a_condition_that_says_what_to_install() -> None:
    found = report(snapshot(groups_served=False))
    for kind in ("WorkloadReady", "Ready"):
        status, reason, message = condition(found, kind)
        assert (status, reason) == ("False", "CRDMissing")
        assert "install LeaderWorkerSet" in message
        assert "nodeCount to 1" in message
    assert ("Warning", "CRDMissing") in [(note.type, note.reason) for note in found.events]


def test_a_controller_that_does_nothing_is_hinted_at() -> None:
    found = report(snapshot(children=(Child("LeaderWorkerSet", owned=True),)))
    assert "LeaderWorkerSet controller runs" in condition(found, "WorkloadReady")[2]


def body(name: str, **labels: str) -> dict[str, Any]:
    """Return a pod as the API gives it, with the controller's marks."""
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {
                f"leaderworkerset.sigs.k8s.io/{key}".replace("_", "-"): v for key, v in labels.items()
            },
            "annotations": {"leaderworkerset.sigs.k8s.io/size": "3"},
        },
        "status": {
            "containerStatuses": [
                {"name": "engine", "containerID": CONTAINER, "ready": True, "state": {"running": {}}}
            ]
        },
    }


def test_a_pods_place_in_its_group_is_read_from_the_controllers_marks() -> None:
    assert to_pod(body("a-0-2", group_index="0", worker_index="2")).group == Group("0", 2, 3)
    assert to_pod(body("single")).group is None


async def test_one_list_gives_leaders_and_workers_and_absent_kinds_are_not_asked_for() -> None:
    resource = {"metadata": {"namespace": "ns", "name": "toy", "uid": "u", "generation": 1}}
    pods = [
        body("toy-engine-0-1", group_index="0", worker_index="1"),
        body("toy-engine-0", group_index="0", worker_index="0"),
    ]

    class Cluster:
        def __init__(self) -> None:
            self.got: list[Any] = []

        async def get(self, kind: Any, _namespace: str, _name: str) -> Any:
            self.got.append(kind)
            return resource if kind is STRUCTURED_LLM else None

        async def list(self, kind: Any, _namespace: str, *, label_selector: str) -> list[Any]:
            assert kind is POD
            assert label_selector == (
                "app.kubernetes.io/component in (engine,engine-worker),structuredllm.io/name=toy"
            )
            return pods

        async def serves(self, _kind: Any) -> bool:
            return False

    cluster = Cluster()
    found = await observe(cast(Any, cluster), cast(Any, None), "ns", "toy")
    assert found is not None
    assert [one.name for one in found.pods] == ["toy-engine-0"]
    assert [one.name for one in found.workers] == ["toy-engine-0-1"]
    assert "2 of" not in found.pods[0].group_problem
    assert "(toy-engine-0-2)" in found.pods[0].group_problem
    assert not found.groups_served
    assert LEADER_WORKER_SET not in cluster.got


async def test_what_is_served_is_remembered_for_a_short_time() -> None:
    class Cluster:
        asked = 0

        async def serves(self, _kind: Any) -> bool:
            self.asked += 1
            return self.asked > 1

    now = 0.0
    cluster = Cluster()
    served = ServedKinds(cast(Any, cluster), monotonic=lambda: now)
    assert not await served.has(LEADER_WORKER_SET)
    now = KEEP_SECONDS - 0.1
    assert not await served.has(LEADER_WORKER_SET)
    now = KEEP_SECONDS
    assert await served.has(LEADER_WORKER_SET), "an installed CRD is found without a restart"


def test_a_single_pod_is_no_group() -> None:
    one = pod()
    assert groups.join([one]) == ((one,), ())
    assert dataclasses.replace(one, group=Group("0", 0, 1)).engine_ready
