"""Plays the LeaderWorkerSet controller where none runs: makes the pods of groups as version 0.8 does.

Owns what that controller would do (names, labels, annotations, environment of pods; recreation as a whole).
Imports no part of the operator, so that tests check it against an independent reading of the contract.
Source: sigs.k8s.io/lws v0.8.0, pkg/controllers and pkg/webhooks. The real controller runs in tests/e2e.
"""

import copy
import time
from pathlib import Path
from typing import Any, cast

from tests.contract.operator.conftest import as_yaml
from tools.cluster.addons import LWS_CHART, LWS_MODULE
from tools.cluster.apiserver import ApiServer
from tools.cluster.binaries import module_source
from tools.cluster.errors import CommandError

PREFIX = "leaderworkerset.sigs.k8s.io"
CRD = "leaderworkersets.leaderworkerset.x-k8s.io"


def crd_path() -> Path:
    """Return the file with the CRD, in the module's own folder."""
    (path,) = (module_source("lws", LWS_MODULE) / LWS_CHART / "crds").glob("*leaderworkersets.yaml")
    return path


def install(api: ApiServer) -> None:
    """Install the CRD and wait until the server serves it; a `kubectl wait` at once finds no conditions."""
    api.kubectl("apply", "--server-side", "-f", str(crd_path()))
    deadline = time.monotonic() + 30
    while True:
        try:
            api.kubectl("get", "leaderworkersets", "-n", "default")
        except CommandError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def remove(api: ApiServer) -> None:
    """Remove the CRD with all its objects."""
    api.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=60s")


class FakeGroups:
    """Makes and deletes the pods of one LeaderWorkerSet."""

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    def make(self, group: int) -> None:
        """Make the pods of one group."""
        found = self._api.kubectl_json("get", "leaderworkerset", self._name, "-n", self._namespace)
        template = cast(dict[str, Any], found)["spec"]["leaderWorkerTemplate"]
        for index in range(template["size"]):
            source = template["leaderTemplate" if index == 0 else "workerTemplate"]
            pod = self._pod(source, group, index, template["size"])
            self._api.kubectl("create", "-n", self._namespace, "-f", "-", stdin=as_yaml(pod))

    def delete(self, group: int, index: int) -> None:
        """Delete one pod at once."""
        where = ("-n", self._namespace, "--force", "--grace-period=0")
        self._api.kubectl("delete", "pod", self._pod_name(group, index), *where)

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
