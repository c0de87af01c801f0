"""Plays the LeaderWorkerSet controller where none runs: makes the pods of groups as version 0.8 does.

Owns what that controller would do (names, labels, annotations, environment of pods; recreation as a whole).
Imports no part of the operator, so that tests check it against an independent reading of the contract.
Source: sigs.k8s.io/lws v0.8.0, pkg/controllers and pkg/webhooks. The real controller runs in tests/e2e.
"""

import contextlib
import copy
from pathlib import Path
from typing import Any

from kubernetes.aio.client import ApiClient, CoreV1Api, CustomObjectsApi
from kubernetes.aio.client.exceptions import ApiException

from tools.cluster.addons import LWS_CHART, LWS_MODULE
from tools.cluster.binaries import module_source

PREFIX = "leaderworkerset.sigs.k8s.io"
CRD = "leaderworkersets.leaderworkerset.x-k8s.io"


def crd_path() -> Path:
    """Return the file with the CRD, in the module's own folder."""
    (path,) = (module_source("lws", LWS_MODULE) / LWS_CHART / "crds").glob("*leaderworkersets.yaml")
    return path


class FakeGroups:
    """Makes and deletes the pods of one LeaderWorkerSet."""

    def __init__(self, api: ApiClient, namespace: str, name: str) -> None:
        self._core = CoreV1Api(api)
        self._objects = CustomObjectsApi(api)
        self._namespace = namespace
        self._name = name

    async def make(self, group: int) -> None:
        """Make the pods of one group that do not exist."""
        found: dict[str, Any] = await self._objects.get_namespaced_custom_object(
            "leaderworkerset.x-k8s.io", "v1", self._namespace, "leaderworkersets", self._name
        )
        template = found["spec"]["leaderWorkerTemplate"]
        for index in range(template["size"]):
            source = template["leaderTemplate" if index == 0 else "workerTemplate"]
            with contextlib.suppress(ApiException):
                await self._core.create_namespaced_pod(
                    self._namespace, self._pod(source, group, index, template["size"])
                )

    async def delete(self, group: int, index: int) -> None:
        """Delete one pod at once."""
        await self._core.delete_namespaced_pod(
            self._pod_name(group, index), self._namespace, grace_period_seconds=0
        )

    def _pod_name(self, group: int, index: int) -> str:
        leader = f"{self._name}-{group}"
        return f"{leader}-{index}" if index else leader

    def _pod(self, source: dict[str, Any], group: int, index: int, size: int) -> dict[str, Any]:
        pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(source)}
        metadata = pod["metadata"]
        metadata["name"] = self._pod_name(group, index)
        metadata.setdefault("labels", {}).update(
            {
                f"{PREFIX}/name": self._name,
                f"{PREFIX}/group-index": str(group),
                f"{PREFIX}/worker-index": str(index),
            }
        )
        metadata.setdefault("annotations", {})[f"{PREFIX}/size"] = str(size)
        leader = f"{self._name}-{group}"
        variables = {
            "LWS_LEADER_ADDRESS": f"{leader}.{leader}.{self._namespace}",
            "LWS_GROUP_SIZE": str(size),
            "LWS_WORKER_INDEX": str(index),
        }
        for container in pod["spec"]["containers"]:
            given = [{"name": key, "value": value} for key, value in variables.items()]
            container["env"] = [*given, *container.get("env", [])]
        return pod
