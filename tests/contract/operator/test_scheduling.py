"""A real scheduler over nodes with eight GPUs each: what fits, what waits and with whose words."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from structuredllm_operator.kube.client import LEADER_WORKER_SET, POD, KubeClient
from tests.contract.operator import conftest
from tests.contract.operator.conftest import as_yaml, condition, eventually, wait_condition
from tests.contract.operator.groups import FakeGroups, install, remove
from tools.cluster.apiserver import ApiServer
from tools.cluster.errors import CommandError

Operator = Callable[[], contextlib.AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.timeout(240)

NODES = {"gpu-a": "zone-a", "gpu-b": "zone-b"}
ZONE = "topology.kubernetes.io/zone"
TAINT = "example.com/scheduling-test"
_NUMBERS = itertools.count(1)


def resource(namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a resource for these nodes, which pods of other tests do not get onto."""
    return conftest.resource(namespace, tolerations=[{"key": TAINT, "operator": "Exists"}], **spec)


def node(name: str, zone: str) -> dict[str, Any]:
    """Return a node with eight GPUs; nobody runs on it, so nobody contradicts its status."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8", "amd.com/gpu": "8"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Played",
        "message": "",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ZONE: zone, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


@contextlib.contextmanager
def heartbeats(api: ApiServer) -> Iterator[None]:
    """Say again and again that the nodes are ready, as kubelets do: after 50 s of silence they are lost."""
    over = threading.Event()

    def beat() -> None:
        while True:
            for name, zone in NODES.items():
                with contextlib.suppress(CommandError):
                    api.kubectl("replace", "--subresource=status", "-f", "-", stdin=as_yaml(node(name, zone)))
            if over.wait(10):
                return

    thread = threading.Thread(target=beat, name="heartbeats")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def scheduled(api: ApiServer, namespace: str) -> Iterator[None]:
    """Two nodes and a scheduler for the time of a test; both see this test's pods only."""
    for name, zone in NODES.items():
        api.kubectl("create", "-f", "-", stdin=as_yaml(node(name, zone)))
    with api.scheduler(), heartbeats(api):
        yield
    # Later tests must not find pods of this one on nodes, nor nodes to put theirs on.
    api.kubectl("delete", "sllm", "--all", "-n", namespace, "--wait=false")
    api.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
    api.kubectl("delete", "nodes", *NODES)


async def places(client: KubeClient, namespace: str) -> list[str]:
    """Return the nodes of the pods that have one, sorted."""
    listed = await client.list(POD, namespace, label_selector="structuredllm.io/name=toy")
    return sorted(pod["spec"]["nodeName"] for pod in listed if pod["spec"].get("nodeName"))


async def wait_places(client: KubeClient, namespace: str, expected: list[str]) -> None:
    """Wait until the pods are on these nodes."""

    async def check() -> bool:
        return await places(client, namespace) == expected

    await eventually(f"pods on {expected}", check)


@pytest.mark.parametrize("vendor", ["nvidia.com/gpu", "amd.com/gpu"])
async def test_pods_that_do_not_fit_wait_and_the_schedulers_words_are_shown(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator, scheduled: None, vendor: str
) -> None:
    body = resource(namespace, replicas=3, parallelism={"tensor": 8, "pipeline": 1})
    body["spec"]["engine"]["gpuResourceName"] = vendor
    async with operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(body))
        found = await wait_condition(client, namespace, "WorkloadReady", "False", "Unschedulable")
        await wait_places(client, namespace, ["gpu-a", "gpu-b"])
        message = condition(found, "WorkloadReady")["message"]
        assert "no node takes the pod: 0/2 nodes are available" in message
        assert f"Insufficient {vendor}" in message
        assert condition(found, "Ready")["reason"] == "Unschedulable"
        described = api.kubectl("describe", "sllm", "toy", "-n", namespace)
        assert f"Insufficient {vendor}" in described


async def test_an_exclusive_replica_has_its_domain_for_itself(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator, scheduled: None
) -> None:
    body = resource(
        namespace, replicas=3, parallelism={"pipeline": 2}, placement={"exclusiveTopologyKey": ZONE}
    )
    async with operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(body))
        await wait_places(client, namespace, ["gpu-a", "gpu-b"])
        found = await wait_condition(client, namespace, "WorkloadReady", "False", "Unschedulable")
        assert "anti-affinity" in condition(found, "WorkloadReady")["message"]


async def test_replicas_are_spread(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator, scheduled: None
) -> None:
    spread = {"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    body = resource(
        namespace, replicas=4, parallelism={"pipeline": 2}, placement={"topologySpread": [spread]}
    )
    async with operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(body))
        await wait_places(client, namespace, ["gpu-a", "gpu-a", "gpu-b", "gpu-b"])


async def test_gpus_by_device_claims(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator, scheduled: None
) -> None:
    """Each pod gets a claim of its own; with eight devices the third pod of three GPUs waits."""
    driver = f"gpu{next(_NUMBERS)}.example.com"
    devices = [{"name": f"gpu-{number}"} for number in range(8)]
    pool = {"name": "gpu-a", "generation": 1, "resourceSliceCount": 1}
    claim = {"name": "gpus", "exactly": {"deviceClassName": driver, "count": 3}}
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    objects: list[dict[str, Any]] = [
        {"kind": "DeviceClass", "metadata": {"name": driver}, "spec": {"selectors": [selector]}},
        {
            "kind": "ResourceSlice",
            "metadata": {"name": driver},
            "spec": {"driver": driver, "nodeName": "gpu-a", "pool": pool, "devices": devices},
        },
        {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "three-gpus", "namespace": namespace},
            "spec": {"spec": {"devices": {"requests": [claim]}}},
        },
    ]
    for one in objects:
        api.kubectl("create", "-f", "-", stdin=as_yaml({"apiVersion": "resource.k8s.io/v1", **one}))
    claims = [{"name": "gpus", "templateName": "three-gpus", "gpus": 3}]
    async with operator():
        body = resource(namespace, replicas=3, placement={"resourceClaims": claims})
        api.kubectl("create", "-f", "-", stdin=as_yaml(body))
        await wait_places(client, namespace, ["gpu-a", "gpu-a"])
        found = await wait_condition(client, namespace, "WorkloadReady", "False", "Unschedulable")
        assert "claim" in condition(found, "WorkloadReady")["message"]
        listed = await client.list(POD, namespace, label_selector="structuredllm.io/name=toy")
        assert all("limits" not in pod["spec"]["containers"][0]["resources"] for pod in listed)


async def test_a_worker_that_does_not_fit_is_named(
    api: ApiServer,
    client: KubeClient,
    namespace: str,
    operator: Operator,
    scheduled: None,
) -> None:
    """Three pods of eight GPUs each, two nodes: the group waits for its third pod."""
    install(api)
    try:
        async with operator():
            body = resource(namespace, parallelism={"tensor": 8, "pipeline": 3}, multiNode={"nodeCount": 3})
            api.kubectl("create", "-f", "-", stdin=as_yaml(body))

            async def made() -> bool:
                return await client.get(LEADER_WORKER_SET, namespace, "toy-engine") is not None

            await eventually("the set", made)
            FakeGroups(api, namespace, "toy-engine").make(0)
            found = await wait_condition(client, namespace, "WorkloadReady", "False", "Unschedulable")
            message = condition(found, "WorkloadReady")["message"]
            assert "pod toy-engine-0" in message
            assert "Insufficient nvidia.com/gpu" in message
    finally:
        remove(api)
