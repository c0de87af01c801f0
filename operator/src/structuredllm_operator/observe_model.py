"""Reads a model's claim, the Jobs that fetch it and how far they are into a `ModelObserved`.

Owns the translation from API objects to our values. Decides nothing; reads nothing where there is neither.
"""

import json
from collections.abc import Mapping
from typing import Any

from structuredllm_operator.api.labels import download_selector
from structuredllm_operator.api.names import model_claim_name
from structuredllm_operator.kube.client import JOB, POD, PVC, Body, KubeClient
from structuredllm_operator.model_progress import ProgressSource
from structuredllm_operator.plan.model_cache import DOWNLOAD_CONTAINER
from structuredllm_operator.plan.observed_model import Claim, DownloadJob, DownloadPod, ModelObserved

_JOB_LABEL = "batch.kubernetes.io/job-name"


async def observe_model(
    client: KubeClient, resource: Body, progress: ProgressSource | None
) -> ModelObserved | None:
    """Return the snapshot, None when the model has neither claim nor download.

    Args:
        client: the API server.
        resource: the StructuredLLM as the API server gave it; its spec may be invalid.
        progress: asks running downloads; None = nobody is asked.

    Raises:
        KubeError: a read failed; the caller tries again later.
    """
    metadata = resource["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    model = (resource.get("spec") or {}).get("model") or {}
    claim_name = _claim_name(model, name)
    downloads = bool(model.get("cache")) or "model" in (resource.get("status") or {})
    if not claim_name and not downloads:
        return None
    claim = await client.get(PVC, namespace, claim_name) if claim_name else None
    jobs: tuple[DownloadJob, ...] = ()
    if downloads:
        selector = download_selector(name)
        bodies = await client.list(JOB, namespace, label_selector=selector)
        pods = await client.list(POD, namespace, label_selector=selector) if bodies else []
        bodies.sort(key=lambda one: str(one["metadata"]["name"]))
        jobs = tuple([await _to_job(body, pods, uid, progress) for body in bodies])
    return ModelObserved(claim=_to_claim(claim, uid), jobs=jobs)


def _claim_name(model: Mapping[str, Any], name: str) -> str:
    uri, cache = str(model.get("uri", "")), model.get("cache")
    if uri.startswith("pvc://"):
        return uri.removeprefix("pvc://").partition("/")[0]
    if isinstance(cache, Mapping):
        return str(cache.get("claimName") or model_claim_name(name))
    return ""


def _to_claim(body: Body | None, uid: str) -> Claim | None:
    if body is None:
        return None
    metadata = body["metadata"]
    phase = (body.get("status") or {}).get("phase", "")
    if metadata.get("deletionTimestamp"):
        # Kept only until the last pod that uses it ends.
        phase = "Terminating"
    return Claim(metadata["name"], metadata["uid"], phase, owned=_is_owned(body, uid))


async def _to_job(body: Body, pods: list[Body], uid: str, progress: ProgressSource | None) -> DownloadJob:
    metadata = body["metadata"]
    conditions = {one["type"]: one for one in (body.get("status") or {}).get("conditions") or []}
    failed = conditions.get("Failed", {})
    own = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(_JOB_LABEL) == metadata["name"]]
    newest = max(own, key=_age, default=None)
    pod = to_download_pod(newest) if newest is not None else None
    if pod is not None and pod.running and pod.ip and progress is not None:
        told = await progress.fetch(pod.ip)
        pod = DownloadPod(**{**pod.__dict__, "progress": told})
    return DownloadJob(
        name=metadata["name"],
        owned=_is_owned(body, uid),
        succeeded=conditions.get("Complete", {}).get("status") == "True",
        failed=str(failed.get("message") or failed.get("reason") or "failed")
        if failed.get("status") == "True"
        else "",
        pod=pod,
    )


def _age(pod: Body) -> tuple[str, str]:
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])


def to_download_pod(body: Mapping[str, Any]) -> DownloadPod:
    """Return our view of a pod that fetches a model."""
    status = body.get("status") or {}
    statuses = status.get("containerStatuses") or []
    container: Mapping[str, Any] = next(
        (one for one in statuses if one.get("name") == DOWNLOAD_CONTAINER), {}
    )
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    scheduled: Mapping[str, Any] = next(
        (one for one in status.get("conditions") or [] if one["type"] == "PodScheduled"), {}
    )
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    words = str(ended.get("message") or "")
    return DownloadPod(
        name=body["metadata"]["name"],
        ip=status.get("podIP", ""),
        running=state.get("running") is not None,
        unschedulable=str(scheduled.get("message", "")) if unschedulable else "",
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restart_count=container.get("restartCount", 0),
        exit_code=ended.get("exitCode"),
        end_reason=ended.get("reason", ""),
        said=_said(words),
        words=words,
    )


def _said(words: str) -> Mapping[str, Any]:
    """Return the JSON object that the download left; a crash leaves a log tail instead."""
    try:
        said = json.loads(words)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _is_owned(body: Mapping[str, Any], uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)
