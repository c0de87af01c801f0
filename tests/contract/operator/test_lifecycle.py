"""The whole way on a real API server: apply a resource, play the kubelet and the engine, read the status."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, CoreV1Api

from structuredllm_operator.kube.client import CHILD_KINDS, DEPLOYMENT, POD, STRUCTURED_LLM, KubeClient
from tests.contract.operator.conftest import as_yaml, condition, eventually, resource, wait_condition
from tests.contract.operator.kubelet import GATE, FakeKubelet, Script
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript
from tools.cluster.apiserver import ApiServer

Operator = Callable[[], contextlib.AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.timeout(180)


def engine(ip: str, mode: str = "healthy", **more: Any) -> FakeEngine:
    """Return a fake engine that listens where a pod of this IP would."""
    return FakeEngine(mode, host=ip, port=8000, **{"telemetry_port": 9464, **more})


async def the_pod(client: KubeClient, namespace: str) -> dict[str, Any]:
    """Return the only pod."""
    (pod,) = await client.list(POD, namespace, label_selector="structuredllm.io/name=toy")
    return pod


def gate_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the gate's pod condition."""
    return next((one for one in pod["status"].get("conditions", []) if one["type"] == GATE), {})


async def test_a_healthy_engine_becomes_ready_and_stays_put(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, pod_ip: str, operator: Operator
) -> None:
    """The proof is on the pod; a second operator changes and sends nothing; deletion leaves nothing."""
    kubelet = FakeKubelet(kube, namespace, Script(ip=pod_ip))
    # It answers only when more requests than pipeline stages wait together, as a cold burst must.
    script = FakeScript(hold_until_in_flight=4)
    async with engine(pod_ip, script=script) as fake, kubelet.running():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        async with operator():
            ready = await wait_condition(client, namespace, "Ready", "True", "AllServing")
            await wait_condition(client, namespace, "Progressing", "False", "RolloutComplete")
        pod = await the_pod(client, namespace)
        container = pod["status"]["containerStatuses"][0]["containerID"]
        assert gate_of(pod)["status"] == "True"
        assert gate_of(pod)["reason"] == "BurstPassed"
        assert gate_of(pod)["message"].startswith(f"[{container}] ")
        assert fake.max_in_flight > 3
        for kind in ("SpecValid", "WorkloadReady", "TopologyVerified", "StructuredReady"):
            assert condition(ready, kind)["status"] == "True", kind
        status = ready["status"]
        assert status["observedGeneration"] == ready["metadata"]["generation"]
        assert all(one["observedGeneration"] == status["observedGeneration"] for one in status["conditions"])
        assert status["url"] == "http://gateway.test"
        assert (status["replicas"], status["readyReplicas"], status["servingReplicas"]) == (1, 1, 1)
        assert status["engine"] == {
            "vllmVersion": "0.32.0",
            "patches": ["p001-batch-queue-drain"],
            "worldSize": 3,
            "pipeline": 3,
            "tensor": 1,
            "asyncScheduling": True,
        }
        assert not ready["metadata"].get("finalizers")
        assert not ready["metadata"].get("annotations")

        before = await versions(client, namespace)
        sent = len(fake.requests)
        async with operator():
            # Longer than one resync: reconciles ran, and nothing shows it, which is the point.
            await asyncio.sleep(3.0)
        assert await versions(client, namespace) == before, "a restarted operator changed something"
        assert len(fake.requests) == sent, "a restarted operator repeated a burst that had passed"

        columns = api.kubectl("get", "sllm", "-n", namespace, "-o", "wide").splitlines()
        assert columns[0].split() == [
            "NAME",
            "MODEL",
            "TP",
            "PP",
            "SERVING",
            "DESIRED",
            "READY",
            "REASON",
            "AGE",
            "URL",
        ]
        assert columns[1].split()[:8] == [
            "toy",
            "file:///models/toy",
            "1",
            "3",
            "1",
            "1",
            "True",
            "AllServing",
        ]
        described = api.kubectl("describe", "sllm", "toy", "-n", namespace)
        assert "BurstPassed" in described.partition("Events:")[2]

    api.kubectl("delete", "sllm", "toy", "-n", namespace)
    await eventually("garbage collection", lambda: nothing_left(client, namespace))


async def versions(client: KubeClient, namespace: str) -> dict[str, Any]:
    """Return uid and version of the resource, its children and its pod."""
    children = {kind.kind: await client.get(kind, namespace, "toy-engine") for kind in CHILD_KINDS}
    bodies = {**children, "Pod": await the_pod(client, namespace)}
    bodies["StructuredLLM"] = await client.get(STRUCTURED_LLM, namespace, "toy")
    return {
        kind: (body["metadata"]["uid"], body["metadata"]["resourceVersion"])
        for kind, body in bodies.items()
        if body
    }


async def nothing_left(client: KubeClient, namespace: str) -> bool:
    """Whether no child and no pod exists."""
    children = [await client.get(kind, namespace, "toy-engine") for kind in CHILD_KINDS]
    pods = await client.list(POD, namespace, label_selector="structuredllm.io/name=toy")
    return not any(children) and not pods


async def test_a_restarted_container_is_gated_again(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, pod_ip: str, operator: Operator
) -> None:
    """A new containerID closes the gate at once; a new burst opens it for that container."""
    script = Script(ip=pod_ip)
    kubelet = FakeKubelet(kube, namespace, script)
    async with engine(pod_ip) as fake, kubelet.running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        await wait_condition(client, namespace, "Ready", "True", "AllServing")
        first = gate_of(await the_pod(client, namespace))
        sent = len(fake.requests)

        script.ready = False
        script.starts = 2

        async def closed() -> bool:
            gate = gate_of(await the_pod(client, namespace))
            return (gate["status"], gate["reason"]) == ("False", "RestartedSinceProbe")

        await eventually("gate closed", closed)
        assert len(fake.requests) == sent, "a burst was sent to a container that is not ready"
        await wait_condition(client, namespace, "StructuredReady", "False", "RestartedSinceProbe")
        script.ready = True
        await wait_condition(client, namespace, "Ready", "True", "AllServing")
        second = gate_of(await the_pod(client, namespace))
        assert second["message"].partition("]")[0] != first["message"].partition("]")[0]
        assert len(fake.requests) > sent


async def test_grammar_rejects_keep_the_resource_from_ready(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, pod_ip: str, operator: Operator
) -> None:
    """The reason is everywhere, the cure in the message, retries end, a restart gives a new chance."""
    script = Script(ip=pod_ip)
    kubelet = FakeKubelet(kube, namespace, script)
    warmup = {"retryBackoffSeconds": 1, "maxRetries": 1, "timeoutSeconds": 20}
    body = resource(namespace, warmup=warmup)
    body["spec"]["engine"]["patches"] = "Disabled"
    async with engine(pod_ip, "always-reject") as fake, kubelet.running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(body))
        found = await wait_condition(client, namespace, "StructuredReady", "False", "GrammarRejected")
        assert "spec.engine.patches" in condition(found, "StructuredReady")["message"]
        await wait_condition(client, namespace, "Ready", "False", "GrammarRejected")

        async def given_up() -> bool:
            return "given up after 2 bursts" in gate_of(await the_pod(client, namespace)).get("message", "")

        await eventually("retries end", given_up)
        after = await wait_condition(client, namespace, "Ready", "False", "GrammarRejected")
        assert after["status"]["lastFailure"]["reason"] == "GrammarRejected"
        assert after["status"]["servingReplicas"] == 0
        assert len(fake.requests) == 2 * 24
        fake.set_mode("healthy")
        script.starts = 2
        await wait_condition(client, namespace, "Ready", "True", "AllServing")


async def test_an_image_without_the_patch_package_is_never_ready(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, pod_ip: str, operator: Operator
) -> None:
    """A closed telemetry port is PatchMissing, without a burst; with patches Optional it serves."""
    kubelet = FakeKubelet(kube, namespace, Script(ip=pod_ip))
    async with engine(pod_ip, telemetry_port=None) as fake, kubelet.running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        found = await wait_condition(client, namespace, "TopologyVerified", "False", "PatchMissing")
        assert "spec.engine.image" in condition(found, "TopologyVerified")["message"]
        await wait_condition(client, namespace, "Ready", "False", "PatchMissing")
        await eventually("gate says why", lambda: _gate_reason(client, namespace, "PatchMissing"))
        assert fake.requests == []
        patch = '{"spec":{"engine":{"patches":"Optional"}}}'
        api.kubectl("patch", "sllm", "toy", "-n", namespace, "--type=merge", "-p", patch)
        await wait_condition(client, namespace, "Ready", "True", "AllServing")


async def _gate_reason(client: KubeClient, namespace: str, reason: str) -> bool:
    return bool(gate_of(await the_pod(client, namespace)).get("reason") == reason)


async def test_a_crashing_engine_shows_its_own_reason(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, pod_ip: str, operator: Operator
) -> None:
    """The engine's last error line is in WorkloadReady and lastFailure after the first crash."""
    log = "INFO starting\nOSError: /models/none does not appear to have a file named config.json\nINFO bye\n"
    last = {"exitCode": 1, "reason": "Error", "message": log, "finishedAt": "2026-01-01T00:00:00Z"}
    script = Script(
        ip=pod_ip, starts=2, waiting={"reason": "CrashLoopBackOff", "message": "back-off"}, last_state=last
    )
    async with FakeKubelet(kube, namespace, script).running(), operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        found = await wait_condition(client, namespace, "WorkloadReady", "False", "CrashLoop")
    assert (
        "/models/none does not appear to have a file named config.json"
        in condition(found, "Ready")["message"]
    )
    assert found["status"]["lastFailure"]["time"] == "2026-01-01T00:00:00Z"


async def test_scaling_and_disruption_budget(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, operator: Operator
) -> None:
    """`kubectl scale` reaches the Deployment; the budget comes with the second replica and goes with it."""
    pdb = CHILD_KINDS[2]
    async with operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))

        async def replicas(count: int, budget: bool) -> bool:
            deployment = await client.get(DEPLOYMENT, namespace, "toy-engine")
            found = deployment is not None and deployment["spec"]["replicas"] == count
            return found and (await client.get(pdb, namespace, "toy-engine") is not None) == budget

        await eventually("one replica", lambda: replicas(1, False))
        api.kubectl("scale", "sllm", "toy", "-n", namespace, "--replicas=2")
        await eventually("two replicas with a budget", lambda: replicas(2, True))
        scale = api.kubectl(
            "get", "sllm", "toy", "-n", namespace, "--subresource=scale", "-o", "jsonpath={.status}"
        )
        assert "app.kubernetes.io/component=engine,structuredllm.io/name=toy" in scale
        api.kubectl("scale", "sllm", "toy", "-n", namespace, "--replicas=1")
        await eventually("one replica without a budget", lambda: replicas(1, False))
        # Drift: a field that we own is put back within a resync.
        api.kubectl("scale", "deployment", "toy-engine", "-n", namespace, "--replicas=5")
        await eventually("drift corrected", lambda: replicas(1, False))


async def test_a_foreign_object_of_the_same_name_is_left_alone(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, operator: Operator
) -> None:
    """NameConflict instead of taking over somebody's Service."""
    port = {"name": "http", "port": 80}
    service = {"metadata": {"name": "toy-engine"}, "spec": {"ports": [port], "selector": {"app": "other"}}}
    await CoreV1Api(kube).create_namespaced_service(namespace, service)
    async with operator():
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        await wait_condition(client, namespace, "Ready", "False", "NameConflict")
    found = await CoreV1Api(kube).read_namespaced_service("toy-engine", namespace)
    assert found.spec.selector == {"app": "other"}
    assert await client.get(DEPLOYMENT, namespace, "toy-engine") is None
