"""Engines over several nodes on a real API server: CRD missing and then there, one gate per group, moves."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient

from structuredllm_operator.kube.client import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD,
    SERVICE,
    STRUCTURED_LLM,
    KubeClient,
)
from tests.contract.operator.conftest import as_yaml, condition, eventually, resource, wait_condition
from tests.contract.operator.groups import FakeGroups, install, remove
from tests.contract.operator.kubelet import GATE, FakeKubelet, Script
from tests.contract.operator.test_crd import refusal
from tests.fakes.fake_engine import FakeEngine
from tools.cluster.apiserver import ApiServer

Operator = Callable[[], contextlib.AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def groups_installed(api: ApiServer) -> Iterator[Callable[[], None]]:
    """Install the CRD of LeaderWorkerSets when called; it is gone after the test."""

    yield lambda: install(api)
    remove(api)


async def pods(client: KubeClient, namespace: str) -> dict[str, dict[str, Any]]:
    """Return the pods by name."""
    listed = await client.list(POD, namespace, label_selector="structuredllm.io/name=toy")
    return {pod["metadata"]["name"]: pod for pod in listed if not pod["metadata"].get("deletionTimestamp")}


def gate(pod: dict[str, Any]) -> tuple[str, str]:
    """Return status and reason of a pod's gate."""
    found = [one for one in (pod.get("status") or {}).get("conditions") or [] if one["type"] == GATE]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def test_a_missing_crd_is_said_harms_nobody_else_and_its_installation_is_noticed(
    api: ApiServer,
    kube: ApiClient,
    client: KubeClient,
    namespace: str,
    pod_ip: str,
    operator: Operator,
    groups_installed: Callable[[], None],
) -> None:
    several = resource(namespace, multiNode={"nodeCount": 3})
    other = resource(namespace, "other", model={"uri": "file:///models/toy", "name": "toy"})
    kubelet = FakeKubelet(kube, namespace, Script(ip=pod_ip))
    fake = FakeEngine(host=pod_ip, port=8000, telemetry_port=9464)
    async with fake, kubelet.running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(several))
        found = await wait_condition(client, namespace, "Ready", "False", "CRDMissing")
        assert "install LeaderWorkerSet" in condition(found, "WorkloadReady")["message"]

        async def told() -> bool:
            described = api.kubectl("describe", "sllm", "toy", "-n", namespace)
            return "install LeaderWorkerSet" in described.partition("Events:")[2]

        await eventually("the event says it, too", told)
        api.kubectl("create", "-f", "-", stdin=as_yaml(other))
        await wait_condition(client, namespace, "Ready", "True", "AllServing", name="other")

        groups_installed()

        async def made() -> bool:
            return await client.get(LEADER_WORKER_SET, namespace, "toy-engine") is not None

        await eventually("the set is made without an event", made, seconds=60)
        assert await client.get(DEPLOYMENT, namespace, "toy-engine") is None

        async def hinted() -> bool:
            body = await client.get(STRUCTURED_LLM, namespace, "toy")
            entry = condition(body, "WorkloadReady")
            return entry["reason"] == "Pending" and "LeaderWorkerSet controller runs" in entry["message"]

        await eventually("a set without pods is explained", hinted, seconds=60)


async def test_a_group_is_one_replica_with_one_gate_and_one_endpoint(
    api: ApiServer,
    kube: ApiClient,
    client: KubeClient,
    namespace: str,
    pod_ip: str,
    operator: Operator,
    groups_installed: Callable[[], None],
) -> None:
    groups_installed()
    kubelet = FakeKubelet(kube, namespace, Script(ip=pod_ip))
    players = FakeGroups(api, namespace, "toy-engine")
    fake = FakeEngine(host=pod_ip, port=8000, telemetry_port=9464)
    async with fake, kubelet.running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace, multiNode={"nodeCount": 3})))

        async def made() -> bool:
            return await client.get(LEADER_WORKER_SET, namespace, "toy-engine") is not None

        await eventually("the set", made)
        players.make(0)
        ready = await wait_condition(client, namespace, "Ready", "True", "AllServing")
        assert [ready["status"][key] for key in ("replicas", "readyReplicas", "servingReplicas")] == [1, 1, 1]
        found = await pods(client, namespace)
        assert sorted(found) == ["toy-engine-0", "toy-engine-0-1", "toy-engine-0-2"]
        assert {name: gate(pod) for name, pod in found.items()} == {
            "toy-engine-0": ("True", "BurstPassed"),
            "toy-engine-0-1": ("", ""),
            "toy-engine-0-2": ("", ""),
        }
        assert api.kubectl("get", "sllm", "toy", "-n", namespace, "-o", "jsonpath={.status.selector}")

        # No endpoint is made of a pod without a node: the selector is looked at instead.
        service = await client.get(SERVICE, namespace, "toy-engine")
        assert service is not None
        chosen = ",".join(f"{key}={value}" for key, value in service["spec"]["selector"].items())
        selected = api.kubectl("get", "pods", "-n", namespace, "-l", chosen, "-o", "name")
        assert selected.split() == ["pod/toy-engine-0"]

        stored = await client.get(LEADER_WORKER_SET, namespace, "toy-engine")
        assert stored is not None
        before = stored["metadata"]["generation"]

        # A worker goes: the gate closes before the group has been recreated, and opens for the next one.
        players.delete(0, 2)
        lost = await wait_condition(client, namespace, "Ready", "False", "GroupIncomplete")
        assert "toy-engine-0-2" in condition(lost, "StructuredReady")["message"]
        assert lost["status"]["servingReplicas"] == 0
        bursts = len(fake.requests)
        for index in (0, 1):
            players.delete(0, index)
        players.make(0)
        await wait_condition(client, namespace, "Ready", "True", "AllServing")
        assert len(fake.requests) > bursts, "the new leader is cold and must prove itself"
        stored = await client.get(LEADER_WORKER_SET, namespace, "toy-engine")
        assert stored is not None
        assert stored["metadata"]["generation"] == before, "nothing of the set changed by it"

        # Drift of the set is corrected.
        api.kubectl(
            *("patch", "leaderworkerset", "toy-engine", "-n", namespace, "--type=merge", "-p"),
            '{"spec":{"leaderWorkerTemplate":{"restartPolicy":"None"}}}',
        )

        async def corrected() -> bool:
            body = await client.get(LEADER_WORKER_SET, namespace, "toy-engine") or {}
            policy = body["spec"]["leaderWorkerTemplate"]["restartPolicy"]
            return bool(policy == "RecreateGroupOnPodRestart")

        await eventually("drift corrected", corrected, seconds=60)

        # And back to one node: the set goes, the Deployment comes.
        api.kubectl(
            *("patch", "sllm", "toy", "-n", namespace, "--type=merge", "-p"),
            '{"spec":{"multiNode":{"nodeCount":1}}}',
        )

        async def moved() -> bool:
            return (
                await client.get(LEADER_WORKER_SET, namespace, "toy-engine") is None
                and await client.get(DEPLOYMENT, namespace, "toy-engine") is not None
            )

        await eventually("moved to one node", moved)


REFUSED = [
    ({"multiNode": {"nodeCount": 2}}, "spec.multiNode.nodeCount must divide spec.parallelism.pipeline"),
    (
        {"parallelism": {"pipeline": 2, "data": 2}, "multiNode": {"nodeCount": 2}},
        "works on one node only",
    ),
    ({"parallelism": {"pipeline": 3, "data": 9}}, "spec.warmup.burst.concurrency must be above"),
    (
        {"multiNode": {"nodeCount": 3}, "resources": {"limits": {"nvidia.com/gpu": 3}}},
        "spec.resources.limits: the GPU count of a pod must be",
    ),
    (
        {"parallelism": {"pipeline": 2, "data": 2}, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        "spec.resources.limits: the GPU count of a pod must be",
    ),
    (
        {"placement": {"resourceClaims": [{"name": "a", "templateName": "t", "gpus": 2}]}},
        "the GPUs of all claims together must be",
    ),
    (
        {
            "placement": {"resourceClaims": [{"name": "a", "templateName": "t", "gpus": 3}]},
            "resources": {"limits": {"nvidia.com/gpu": 3}},
        },
        "spec.placement.resourceClaims brings the GPUs: remove",
    ),
    (
        {
            "engine": {"image": "i", "accelerator": "cpu"},
            "placement": {"resourceClaims": [{"name": "a", "templateName": "t", "gpus": 3}]},
        },
        "spec.engine.accelerator is cpu",
    ),
    ({"engine": {"image": "i", "args": ["--data-parallel-rank=1"]}}, "is set by the operator"),
    ({"engine": {"image": "i", "args": ["-dpl=1"]}}, "is set by the operator"),
    ({"multiNode": {"backend": "Ray"}}, "Unsupported value"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_add_up_is_refused_at_admission(
    api: ApiServer, change: dict[str, Any], words: str
) -> None:
    assert words in refusal(api, resource("default", **change))


@pytest.mark.parametrize(
    "change",
    [
        {"multiNode": {"nodeCount": 3}, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        {"parallelism": {"tensor": 8, "pipeline": 4}, "multiNode": {"nodeCount": 2}},
        {"parallelism": {"pipeline": 2, "data": 4}, "resources": {"limits": {"nvidia.com/gpu": "8"}}},
        {
            "engine": {"image": "i", "gpuResourceName": "amd.com/gpu"},
            "resources": {"limits": {"amd.com/gpu": 3}},
        },
        {"placement": {"resourceClaims": [{"name": "a", "templateName": "t", "gpus": 3}]}},
        {
            "placement": {
                "exclusiveTopologyKey": "topology.kubernetes.io/rack",
                "topologySpread": [{"topologyKey": "topology.kubernetes.io/zone"}],
            }
        },
    ],
)
def test_what_adds_up_is_accepted(api: ApiServer, change: dict[str, Any]) -> None:
    api.kubectl("create", "--dry-run=server", "-f", "-", stdin=as_yaml(resource("default", **change)))
