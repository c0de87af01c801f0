"""Rendering of engines over several nodes: golden-checked, and each part that a group cannot do without."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from structuredllm_operator.plan.observed import Child
from structuredllm_operator.plan.plan import Ref, build_children, make_plan, parse_spec
from tests.unit.operator.builders import observed, pod, raw_spec, revision

GOLDEN = Path(__file__).parent / "golden" / "groups.json"

FULL = {
    "model": {"uri": "hf://org/model"},
    "engine": {"image": "example/engine:1", "args": ["--max-model-len=8192"]},
    "parallelism": {"tensor": 2, "pipeline": 6},
    "multiNode": {"nodeCount": 3},
    "replicas": 2,
    "placement": {
        "exclusiveTopologyKey": "topology.kubernetes.io/rack",
        "topologySpread": [{"topologyKey": "topology.kubernetes.io/zone"}],
    },
}
SEVERAL = {"multiNode": {"nodeCount": 3}}


def children(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return kind -> manifest."""
    snapshot = observed(raw=raw)
    return {child["kind"]: child for child in build_children(snapshot, parse_spec(snapshot.spec))}


def templates(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the leader's and the workers' pod template."""
    group = children(raw)["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return group["leaderTemplate"], group["workerTemplate"]


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Return the engine container."""
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def test_children_are_as_in_the_golden_file() -> None:
    """A difference here restarts every engine of every user on upgrade: change the file only on purpose."""
    assert children(FULL) == json.loads(GOLDEN.read_text())


def test_a_group_replaces_the_deployment_and_is_recreated_as_a_whole() -> None:
    found = children(raw_spec(**SEVERAL))
    assert set(found) == {"ServiceAccount", "Service", "LeaderWorkerSet"}
    spec = found["LeaderWorkerSet"]["spec"]
    assert spec["leaderWorkerTemplate"]["size"] == 3
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    # The shared Service of a set would have the set's name, which is that of ours.
    assert spec["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}


def test_the_nodes_meet_at_the_leader_and_only_it_has_a_front_end() -> None:
    leader, worker = templates(FULL)
    for template in (leader, worker):
        args = container(template)["args"]
        for expected in (
            "--pipeline-parallel-size=6",
            "--tensor-parallel-size=2",
            "--distributed-executor-backend=mp",
            "--nnodes=3",
            "--node-rank=$(LWS_WORKER_INDEX)",
            "--master-addr=$(LWS_LEADER_ADDRESS)",
            "--master-port=29501",
        ):
            assert expected in args
        assert {
            "name": "VLLM_HOST_IP",
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        } in container(template)["env"]
        assert container(template)["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert "--headless" not in container(leader)["args"]
    assert "--headless" in container(worker)["args"]


def test_the_users_host_address_is_kept() -> None:
    env = [{"name": "VLLM_HOST_IP", "value": "10.0.0.9"}]
    leader, _ = templates(raw_spec(**SEVERAL, engine={"image": "i", "env": env}))
    assert [one for one in container(leader)["env"] if one["name"] == "VLLM_HOST_IP"] == env


def test_only_the_leader_is_asked_and_gated() -> None:
    """The Service, the gateway and the probes see pods of the component `engine`."""
    leader, worker = templates(FULL)
    assert leader["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] == "engine-worker"
    assert children(FULL)["Service"]["spec"]["selector"]["app.kubernetes.io/component"] == "engine"
    assert leader["spec"]["readinessGates"] == [{"conditionType": "structuredllm.io/StructuredReady"}]
    assert "readinessGates" not in worker["spec"]
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe"} & set(container(worker))
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container(leader))


def test_one_eviction_takes_one_group() -> None:
    assert children(FULL)["PodDisruptionBudget"]["spec"]["selector"] == {
        "matchLabels": {"structuredllm.io/name": "toy"},
        "matchExpressions": [
            {"key": "app.kubernetes.io/component", "operator": "In", "values": ["engine", "engine-worker"]}
        ],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"rolloutStrategy": {"maxSurge": 1, "maxUnavailable": 0}},
        {"warmup": {"maxRetries": 9}},
    ],
)
def test_what_is_not_in_the_pods_does_not_restart_groups(change: dict[str, Any]) -> None:
    assert revision(raw_spec(**SEVERAL, **change)) == revision(raw_spec(**SEVERAL))


def test_the_number_of_nodes_makes_a_new_revision() -> None:
    six = {"parallelism": {"pipeline": 6}}
    found = {revision(raw_spec(**six, multiNode={"nodeCount": nodes})) for nodes in (1, 2, 3, 6)}
    assert len(found) == 4


def test_both_templates_carry_the_same_revision() -> None:
    for template in templates(FULL):
        assert template["metadata"]["annotations"] == {
            "structuredllm.io/template-revision-hash": revision(FULL)
        }


def test_the_rollout_is_counted_in_groups() -> None:
    raw = raw_spec(**SEVERAL, rolloutStrategy={"maxSurge": 2, "maxUnavailable": 0})
    assert children(raw)["LeaderWorkerSet"]["spec"]["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxSurge": 2, "maxUnavailable": 0},
    }


@pytest.mark.parametrize(
    ("raw", "old", "deleted"),
    [
        (raw_spec(**SEVERAL), "Deployment", "Deployment"),
        (raw_spec(), "LeaderWorkerSet", "LeaderWorkerSet"),
        (raw_spec(**SEVERAL), "LeaderWorkerSet", None),
    ],
)
def test_the_other_workload_goes_when_the_engine_moves(
    raw: dict[str, Any], old: str, deleted: str | None
) -> None:
    found = make_plan(observed(raw=raw, children=(Child(old, owned=True),)), {}, 0.0)
    assert found.delete == ((Ref(deleted, "ns", "toy-engine"),) if deleted else ())


def test_without_the_crd_what_runs_goes_on() -> None:
    snapshot = observed(
        pod(), raw=raw_spec(**SEVERAL), children=(Child("Deployment", owned=True),), groups_served=False
    )
    found = make_plan(snapshot, {}, 0.0)
    assert found.missing_kind == "LeaderWorkerSet"
    assert [child["kind"] for child in found.apply] == ["ServiceAccount", "Service"]
    assert found.delete == ()


def test_the_crd_does_not_matter_to_an_engine_on_one_node() -> None:
    found = make_plan(observed(groups_served=False), {}, 0.0)
    assert found.missing_kind == ""
    assert "Deployment" in [child["kind"] for child in found.apply]


class Leader:
    """Plays `socket` and `time` for the workers' preStop script: connections work until `gone_at` seconds."""

    def __init__(self, gone_at: float, blips: tuple[float, ...] = ()) -> None:
        self.now, self.gone_at, self.blips = 0.0, gone_at, blips
        self.asked: list[tuple[str, int]] = []

    def run(self, script: str, monkeypatch: pytest.MonkeyPatch) -> float:
        """Run the script and return the seconds that it took."""
        socket, time = ModuleType("socket"), ModuleType("time")
        vars(socket)["create_connection"] = self.connect
        vars(time).update(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setitem(sys.modules, "socket", socket)
        monkeypatch.setitem(sys.modules, "time", time)
        monkeypatch.setenv("LWS_LEADER_ADDRESS", "toy-engine-0.toy-engine-0.ns")
        exec(compile(script, "preStop", "exec"), {})  # noqa: S102 (what the pod would run)
        return self.now

    def connect(self, address: tuple[str, int], _timeout: float) -> "Leader":
        """Answer as the leader's master port does."""
        self.asked.append(address)
        if self.now >= self.gone_at or self.now in self.blips:
            raise ConnectionRefusedError
        return self

    def close(self) -> None:
        """Do nothing."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.mark.parametrize(
    ("leader", "seconds"),
    [
        (Leader(gone_at=12), 14.0),  # twice refused: the leader has ended
        (Leader(gone_at=0), 2.0),  # it crashed: nothing holds the new group up
        (Leader(gone_at=12, blips=(3.0,)), 14.0),  # one refusal says nothing
        (Leader(gone_at=1e9), 40.0),  # pause 5 + drain 30 + 5: never longer
    ],
)
def test_a_worker_stays_as_long_as_its_leader_drains(
    leader: Leader, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, worker = templates(raw_spec(**SEVERAL))
    hook = container(worker)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:2] == ["python3", "-c"]
    assert leader.run(hook[2], monkeypatch) == seconds
    assert set(leader.asked) == {("toy-engine-0.toy-engine-0.ns", 29501)}
    assert seconds < worker["spec"]["terminationGracePeriodSeconds"]
