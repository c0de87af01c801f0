"""Carries out a Plan and a Report: server-side apply, deletes, gate conditions, status, events.

Owns the wire form of what is written and which failures are harmless (the object is gone). Decides nothing
else.
"""

import hashlib
import logging
from collections.abc import Iterable

from structuredllm_operator.api.labels import API_VERSION, FIELD_MANAGER, GATE_CONDITION, KIND
from structuredllm_operator.errors import ConflictError, ForbiddenError, KubeError, NotFoundError
from structuredllm_operator.kube.client import EVENT, KINDS, POD, KubeClient
from structuredllm_operator.plan.gate import GateWrite
from structuredllm_operator.plan.observed import Observed
from structuredllm_operator.plan.plan import Plan
from structuredllm_operator.report import EventNote, Report

_LOGGER = logging.getLogger(__name__)


async def apply_children(client: KubeClient, plan: Plan) -> None:
    """Delete what is surplus, then apply the children in order.

    Raises:
        KubeError: a write failed; what was written before stays, and the next reconcile goes on.
    """
    for ref in plan.delete:
        await client.delete(KINDS[ref.kind], ref.namespace, ref.name)
    for manifest in plan.apply:
        await client.apply(manifest)


async def write_gates(
    client: KubeClient, namespace: str, observed: Observed, writes: Iterable[GateWrite], now: str
) -> None:
    """Write pod conditions; the kubelet's own are kept, `lastTransitionTime` moves only with the status.

    Raises:
        KubeError: the API server refused; a pod that is gone or was replaced is no error.
    """
    before = {pod.uid: pod.gate for pod in observed.pods}
    for write in writes:
        old = before.get(write.pod_uid)
        same = old is not None and old.status == write.status and old.changed_at
        condition = {
            "type": GATE_CONDITION,
            "status": write.status,
            "reason": write.reason,
            "message": write.message,
            "lastTransitionTime": old.changed_at if same and old is not None else now,
        }
        # The uid is a precondition: a pod of the same name made meanwhile must not get this condition.
        body = {"metadata": {"uid": write.pod_uid}, "status": {"conditions": [condition]}}
        try:
            await client.patch_status(POD, namespace, write.pod_name, body)
        except (NotFoundError, ConflictError) as error:
            _LOGGER.info("pod %s/%s went before its gate was written: %s", namespace, write.pod_name, error)


async def write_status(client: KubeClient, observed: Observed, report: Report) -> None:
    """Apply the status when it changed. Fields that vanish from it are removed by server-side apply.

    Raises:
        KubeError: the API server refused.
    """
    if not report.changed:
        return
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        # With the uid a resource deleted and made again meanwhile gets a conflict, not the old one's status.
        "metadata": {"name": observed.name, "namespace": observed.namespace, "uid": observed.uid},
        "status": dict(report.status),
    }
    await client.apply(manifest, subresource="status")


async def post_events(client: KubeClient, observed: Observed, notes: Iterable[EventNote], now: str) -> None:
    """Create Events about the resource. Losing one is harmless: the conditions say the same."""
    for note in notes:
        digest = hashlib.sha256(f"{observed.uid}{now}{note.reason}{note.message}".encode()).hexdigest()[:16]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{observed.name}.{digest}", "namespace": observed.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": observed.name,
                "namespace": observed.namespace,
                "uid": observed.uid,
            },
            "type": note.type,
            "reason": note.reason,
            "message": note.message,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": FIELD_MANAGER,
        }
        try:
            await client.create(EVENT, observed.namespace, body)
        except ConflictError:
            continue
        except ForbiddenError as error:
            _LOGGER.warning("cannot post events: %s", error)
        except KubeError as error:
            _LOGGER.info("an event was lost: %s", error)
