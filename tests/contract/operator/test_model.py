"""A cached model on a real API server and its Job controller; the download's pod is played."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, CoreV1Api

from structuredllm_operator.kube.client import DEPLOYMENT, JOB, POD, PVC, STRUCTURED_LLM, KubeClient
from tests.contract.operator.conftest import as_yaml, eventually, resource, wait_condition
from tools.cluster.apiserver import ApiServer
from tools.cluster.errors import CommandError

Operator = Callable[..., contextlib.AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.timeout(180)

SELECTOR = "structuredllm.io/name=toy,app.kubernetes.io/component=model-download"


def cached(namespace: str, **model: Any) -> str:
    """Return a resource whose model is fetched to a claim."""
    model = {"uri": "hf://org/m", "cache": {"claimName": "models"}, **model}
    return as_yaml(resource(namespace, model=model))


def claim(namespace: str) -> str:
    """Return a claim that nobody binds."""
    return as_yaml(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )


async def play(
    client: KubeClient, kube: ApiClient, namespace: str, phase: str, container: dict[str, Any]
) -> None:
    """Write the status of the download's pod as the kubelet would."""
    pods: list[dict[str, Any]] = []

    async def exists() -> bool:
        pods[:] = await client.list(POD, namespace, label_selector=SELECTOR)
        return bool(pods)

    await eventually("a pod of the download", exists)
    status = {"name": "download", "image": "i", "imageID": "", "ready": False, "restartCount": 0, **container}
    body = {"status": {"phase": phase, "containerStatuses": [status]}}
    await CoreV1Api(kube).patch_namespaced_pod_status(pods[0]["metadata"]["name"], namespace, body)


def ended(code: int, said: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a container that ended."""
    return {"exitCode": code, "reason": "Error" if code else "Completed", "message": json.dumps(said)}


async def test_engines_come_after_the_model(
    api: ApiServer, kube: ApiClient, client: KubeClient, namespace: str, operator: Operator
) -> None:
    """Claim missing, pending, refused by the hub, fetched: each is told; then the engines are made."""
    async with operator():
        api.kubectl("create", "-f", "-", stdin=cached(namespace))
        await wait_condition(client, namespace, "ModelReady", "False", "PVCMissing")
        api.kubectl("create", "-f", "-", stdin=claim(namespace))
        await wait_condition(client, namespace, "ModelReady", "False", "PVCPending")
        failed = ended(1, {"reason": "AuthFailed", "message": "the hub refuses org/m: correct the Secret"})
        waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": failed}}
        await play(client, kube, namespace, "Running", {**waiting, "restartCount": 1})
        body = await wait_condition(client, namespace, "ModelReady", "False", "AuthFailed")
        await wait_condition(client, namespace, "Ready", "False", "AuthFailed")
        assert await client.get(DEPLOYMENT, namespace, "toy-engine") is None

        async def described() -> bool:
            text = api.kubectl("describe", "sllm", "toy", "-n", namespace)
            return "ModelReady is False: the hub refuses org/m: correct the Secret" in text

        await eventually("the event", described)
        done = ended(0, {"commit": "c" * 40, "sizeBytes": 1 << 30})
        await play(client, kube, namespace, "Succeeded", {"state": {"terminated": done}})
        body = await wait_condition(client, namespace, "ModelReady", "True", "ModelCached")
        assert body["status"]["model"]["commit"] == "c" * 40
        assert body["status"]["model"]["ready"] is True

        async def engines() -> bool:
            return await client.get(DEPLOYMENT, namespace, "toy-engine") is not None

        await eventually("the engines", engines)
        # Its Job goes with time; the status remembers, so nothing is fetched again.
        api.kubectl("delete", "jobs", "--all", "-n", namespace)
    async with operator():
        api.kubectl("scale", "sllm", "toy", "-n", namespace, "--replicas=2")

        async def looked() -> bool:
            found = await client.get(STRUCTURED_LLM, namespace, "toy") or {}
            return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

        await eventually("a look of the new operator", looked)
        await wait_condition(client, namespace, "ModelReady", "True", "ModelCached")
        assert not await client.list(JOB, namespace, label_selector=SELECTOR)
    api.kubectl("delete", "sllm", "toy", "-n", namespace)
    assert await client.get(PVC, namespace, "models") is not None, "a claim of the user's is never deleted"


async def test_a_claim_is_made_and_goes_with_the_resource(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator
) -> None:
    async with operator():
        api.kubectl("create", "-f", "-", stdin=cached(namespace, cache={"size": "1Gi"}))

        async def made() -> bool:
            jobs = await client.list(JOB, namespace, label_selector=SELECTOR)
            return bool(jobs) and await client.get(PVC, namespace, "toy-model") is not None

        await eventually("claim and Job", made)
        for change, words in (
            ({"size": "512Mi"}, "may only grow"),
            ({"storageClassName": "other"}, "of a claim cannot be changed"),
        ):
            patch = json.dumps({"spec": {"model": {"cache": change}}})
            with pytest.raises(CommandError) as refused:
                api.kubectl("patch", "sllm", "toy", "-n", namespace, "--type=merge", f"-p={patch}")
            assert words in str(refused.value)
        before = {
            one["metadata"]["name"] for one in await client.list(JOB, namespace, label_selector=SELECTOR)
        }
        api.kubectl(
            "patch", "sllm", "toy", "-n", namespace, "--type=merge", '-p={"spec":{"model":{"revision":"v2"}}}'
        )

        async def replaced() -> bool:
            jobs = await client.list(JOB, namespace, label_selector=SELECTOR)
            names = {one["metadata"]["name"] for one in jobs if not one["metadata"].get("deletionTimestamp")}
            return len(names) == 1 and names != before

        await eventually("the Job of the other revision alone", replaced)
        api.kubectl("delete", "sllm", "toy", "-n", namespace)

        async def gone() -> bool:
            jobs = await client.list(JOB, namespace, label_selector=SELECTOR)
            pods = await client.list(POD, namespace, label_selector=SELECTOR)
            left = await client.get(PVC, namespace, "toy-model")
            return not jobs and not pods and (left is None or "deletionTimestamp" in left["metadata"])

        await eventually("garbage collection", gone)


async def test_an_image_is_taken_as_a_volume(
    api: ApiServer, client: KubeClient, namespace: str, operator: Operator
) -> None:
    """The API server keeps the field: the volume type is on by default."""
    async with operator():
        api.kubectl(
            "create", "-f", "-", stdin=as_yaml(resource(namespace, model={"uri": "oci://r.example/m:1"}))
        )

        async def engines() -> bool:
            return await client.get(DEPLOYMENT, namespace, "toy-engine") is not None

        await eventually("the engines", engines)
        body = await client.get(DEPLOYMENT, namespace, "toy-engine") or {}
        volumes = body["spec"]["template"]["spec"]["volumes"]
        assert {
            "name": "model",
            "image": {"reference": "r.example/m:1", "pullPolicy": "IfNotPresent"},
        } in volumes
        assert await client.get(STRUCTURED_LLM, namespace, "toy") is not None
