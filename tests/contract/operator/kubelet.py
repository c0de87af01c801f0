"""Plays the kubelet on a control plane without nodes: writes pod status and nothing else.

Owns what a kubelet would report (IP, containers, Ready from containers and gates). Imports no part of the
operator, so that tests check it against an independent reading of the contract.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from kubernetes.aio.client import ApiClient, CoreV1Api

GATE = "structuredllm.io/StructuredReady"


@dataclass
class Script:
    """What the kubelet reports for the pods of one namespace, in turn; change it while it runs."""

    ip: str
    starts: int = 1
    ready: bool = True
    waiting: dict[str, str] | None = None
    last_state: dict[str, Any] | None = None
    unschedulable: str = ""
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    containers: dict[tuple[str, int], str] = field(default_factory=dict)

    def container_id(self, uid: str) -> str:
        """Return the containerID of a pod for the current number of starts."""
        key = (uid, self.starts)
        if key not in self.containers:
            self.containers[key] = f"containerd://{next(self.ids):064x}"
        return self.containers[key]


class FakeKubelet:
    """Writes pod status by a script, again and again, as a kubelet does."""

    def __init__(self, api: ApiClient, namespace: str, script: Script) -> None:
        self._core = CoreV1Api(api)
        self._api = api
        self._namespace = namespace
        self.script = script

    @contextlib.asynccontextmanager
    async def running(self, period_seconds: float = 0.1) -> AsyncIterator[None]:
        """Play in the background."""
        task = asyncio.create_task(self._loop(period_seconds))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _loop(self, period_seconds: float) -> None:
        while True:
            await self.tick()
            await asyncio.sleep(period_seconds)

    async def tick(self) -> None:
        """Write the status of every pod of the namespace once, where it differs."""
        pods = await self._core.list_namespaced_pod(self._namespace)
        for pod in pods.items:
            body = self._api.sanitize_for_serialization(pod)
            if body["metadata"].get("deletionTimestamp"):
                continue
            wanted = self._status(body)
            current = body.get("status") or {}
            if _covers(current, wanted):
                continue
            with contextlib.suppress(Exception):
                await self._core.patch_namespaced_pod_status(
                    body["metadata"]["name"], self._namespace, {"status": wanted}
                )

    def _status(self, pod: dict[str, Any]) -> dict[str, Any]:
        script = self.script
        if script.unschedulable:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": script.unschedulable,
            }
            return {"phase": "Pending", "conditions": [condition]}
        ready = script.ready and script.waiting is None
        container: dict[str, Any] = {
            "name": "engine",
            "image": "example/engine:1",
            "imageID": "",
            "ready": ready,
            "restartCount": script.starts - 1,
            "containerID": script.container_id(pod["metadata"]["uid"]),
            "state": {"waiting": script.waiting}
            if script.waiting
            else {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "lastState": {"terminated": script.last_state} if script.last_state else {},
        }
        gates = {one["type"]: one["status"] for one in (pod.get("status") or {}).get("conditions") or []}
        open_gate = gates.get(GATE) == "True"
        return {
            "phase": "Running",
            "podIP": script.ip,
            "podIPs": [{"ip": script.ip}],
            "containerStatuses": [container],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "ContainersReady", "status": str(ready)},
                {"type": "Ready", "status": str(ready and open_gate)},
            ],
        }


def _covers(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    for key, value in wanted.items():
        if key == "conditions":
            have = {one["type"]: one["status"] for one in current.get("conditions") or []}
            if any(have.get(one["type"]) != one["status"] for one in value):
                return False
        elif key == "containerStatuses":
            one = (current.get(key) or [{}])[0]
            if any(one.get(name) != value[0][name] for name in ("ready", "restartCount", "containerID")):
                return False
            if bool((one.get("state") or {}).get("waiting")) != bool(value[0]["state"].get("waiting")):
                return False
        elif current.get(key) != value:
            return False
    return True
