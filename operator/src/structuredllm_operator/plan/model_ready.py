"""Decides about a resource's model: what to make for it, whether engines may start, what ModelReady says.

Pure. `status.model` remembers a finished download, so that nothing is fetched or checked twice, not even by
an operator that was restarted; the claim's uid in it makes a new claim of the same name an empty one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from structuredllm_operator.api import conditions as api
from structuredllm_operator.api.conditions import FALSE, TRUE, Condition, Reason
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.failures import PULL_REASONS, telling_line
from structuredllm_operator.plan.model_cache import Downloader, build_claim, build_job, content_key, job_name
from structuredllm_operator.plan.model_failures import CURES, recognise
from structuredllm_operator.plan.model_source import claim_name, image_reference, is_cached, is_hub_model
from structuredllm_operator.plan.observed import Manifest, Observed, Pod
from structuredllm_operator.plan.observed_model import Claim, DownloadJob, DownloadPod, ModelObserved

POLL_SECONDS: Final = 5.0
"""How often a download is looked at."""

_MIB: Final = 1 << 20
_RETRY: Final = "it is tried again by itself, at least every 5 minutes"


@dataclass(frozen=True)
class ModelDecision:
    """What to do about the model.

    Attributes:
        condition: ModelReady, None where it does not apply.
        apply: claim and Job, to be applied before the other children.
        delete: names of Jobs that are of no use any more.
        held: whether the workload must stay as it is until the model is there.
        status: status.model; None = there is none.
        look_again_seconds: when to look again although nothing may happen.
    """

    condition: Condition | None = None
    apply: tuple[Manifest, ...] = ()
    delete: tuple[str, ...] = ()
    held: bool = False
    status: Mapping[str, Any] | None = None
    look_again_seconds: float | None = None


@dataclass(frozen=True)
class _Finding:
    reason: str
    message: str
    status: Mapping[str, Any] = field(default_factory=dict)


def decide_model(
    observed: Observed, spec: StructuredLLMSpec, owner: Manifest, downloader: Downloader | None
) -> ModelDecision:
    """Decide.

    Args:
        observed: the resource; `observed.model` is None when nothing of its model was read.
        spec: its valid spec.
        owner: its owner reference.
        downloader: the image that fetches models, None when the operator was not told one.
    """
    seen = observed.model or ModelObserved()
    if is_cached(spec):
        return _decide_cached(observed, spec, seen, owner, downloader)
    jobs = tuple(job.name for job in seen.jobs if job.owned)
    claim = claim_name(spec, observed.name)
    if claim is not None:
        trouble = _claim_trouble(seen.claim, claim)
        if trouble is not None:
            condition = Condition(api.MODEL_READY, FALSE, trouble.reason, trouble.message)
            return ModelDecision(condition, delete=jobs, look_again_seconds=POLL_SECONDS)
    return ModelDecision(_loaded(spec, observed.pods), delete=jobs)


def _decide_cached(
    observed: Observed,
    spec: StructuredLLMSpec,
    seen: ModelObserved,
    owner: Manifest,
    downloader: Downloader | None,
) -> ModelDecision:
    name, namespace = observed.name, observed.namespace
    wanted = job_name(spec, name)
    claim_to_make = build_claim(spec, name, namespace, owner)
    surplus = tuple(job.name for job in seen.jobs if job.owned and job.name != wanted)
    if claim_to_make is not None and seen.claim is not None and not seen.claim.owned:
        text = (
            f"PersistentVolumeClaim {seen.claim.name} exists and is not controlled by this resource: give it"
            " as spec.model.cache.claimName, or delete it"
        )
        return _not_ready(_Finding(Reason.NAME_CONFLICT, text), delete=surplus)
    apply = (claim_to_make,) if claim_to_make is not None else ()
    if claim_to_make is None or seen.claim is not None:
        trouble = _claim_trouble(seen.claim, claim_name(spec, name) or "", pending_is_fine=True)
        if trouble is not None:
            return _not_ready(trouble, apply=apply, delete=surplus)
    base = {
        "claimName": claim_name(spec, name),
        "key": content_key(spec, name),
        **({"claimUid": seen.claim.uid} if seen.claim is not None else {}),
    }
    done = _remembered(observed.status.get("model"), base)
    if done is not None:
        return ModelDecision(_cached(done), apply=apply, delete=surplus, status=done)
    job = next((one for one in seen.jobs if one.name == wanted), None)
    if job is None:
        if downloader is None:
            text = "the operator has no image to fetch models with: start it with --downloader-image"
            return _not_ready(_Finding(Reason.DOWNLOADER_MISSING, text), apply=apply, delete=surplus)
        made = build_job(spec, name, namespace, owner, downloader)
        finding = _Finding(Reason.DOWNLOADING, f"Job {wanted} is made to fetch the model")
        return _not_ready(finding, apply=(*apply, made), delete=surplus, status=base)
    if job.succeeded:
        said = job.pod.said if job.pod is not None else {}
        done = {**base, **_facts(said), "ready": True, "percent": 100}
        return ModelDecision(_cached(done), apply=apply, delete=surplus, status=done)
    finding = _look_at(job, seen.claim)
    return _not_ready(finding, apply=apply, delete=surplus, status={**base, **finding.status})


def _not_ready(
    finding: _Finding,
    *,
    apply: tuple[Manifest, ...] = (),
    delete: tuple[str, ...] = (),
    status: Mapping[str, Any] | None = None,
) -> ModelDecision:
    return ModelDecision(
        Condition(api.MODEL_READY, FALSE, finding.reason, finding.message),
        apply=apply,
        delete=delete,
        held=True,
        status=None if status is None else {**status, "ready": False},
        look_again_seconds=POLL_SECONDS,
    )


def _claim_trouble(claim: Claim | None, name: str, *, pending_is_fine: bool = False) -> _Finding | None:
    if claim is None:
        return _Finding(
            Reason.PVC_MISSING,
            f"PersistentVolumeClaim {name} does not exist: create it, or correct spec.model",
        )
    if claim.phase == "Lost":
        return _Finding(
            Reason.PVC_PENDING,
            f"PersistentVolumeClaim {name} lost its volume: restore the volume, or replace it",
        )
    if claim.phase != "Bound" and not pending_is_fine:
        return _Finding(
            Reason.PVC_PENDING,
            f"PersistentVolumeClaim {name} is {claim.phase or 'Pending'}: no volume is bound to it yet;"
            f" see kubectl describe pvc {name}",
        )
    return None


def _remembered(old: Any, base: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not isinstance(old, Mapping) or old.get("ready") is not True or "claimUid" not in base:
        return None
    return dict(old) if all(old.get(key) == value for key, value in base.items()) else None


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    commit, size = said.get("commit"), said.get("sizeBytes")
    facts: dict[str, Any] = {"commit": commit} if isinstance(commit, str) and commit else {}
    if isinstance(size, int):
        facts["sizeBytes"] = size
    return facts


def _cached(done: Mapping[str, Any]) -> Condition:
    commit, size = str(done.get("commit", ""))[:12], done.get("sizeBytes")
    parts = [f"commit {commit}"] if commit else []
    parts += [f"{size // _MIB} MiB"] if isinstance(size, int) else []
    text = f"the model is on PersistentVolumeClaim {done['claimName']}, its checksums were right"
    return Condition(
        api.MODEL_READY, TRUE, Reason.MODEL_CACHED, f"{text} ({', '.join(parts)})" if parts else text
    )


def _look_at(job: DownloadJob, claim: Claim | None) -> _Finding:
    """Return why a Job has not succeeded, in the words of scheduler, kubelet or download."""
    if job.failed:
        return _Finding(
            Reason.DOWNLOAD_FAILED,
            f"Job {job.name} was given up ({job.failed}): delete it, and a new one is made",
        )
    pod = job.pod
    if pod is None:
        return _Finding(Reason.DOWNLOADING, f"waiting for the pod of Job {job.name}")
    if pod.unschedulable:
        if "persistentvolumeclaim" in pod.unschedulable.lower():
            return _Finding(Reason.PVC_PENDING, f"no node takes pod {pod.name}: {pod.unschedulable}")
        return _Finding(Reason.UNSCHEDULABLE, f"no node takes pod {pod.name}: {pod.unschedulable}")
    if pod.waiting_reason in PULL_REASONS:
        return _Finding(
            Reason.IMAGE_PULL_FAILED,
            f"pod {pod.name}: {pod.waiting_reason}: {pod.waiting_message}; check the operator's"
            " --downloader-image",
        )
    moving = pod.running and pod.progress is not None and pod.progress.phase == "Downloading"
    if pod.exit_code not in (None, 0) and not moving:
        return _failed(pod)
    if not pod.running and claim is not None and claim.phase == "Pending":
        return _Finding(
            Reason.PVC_PENDING,
            f"PersistentVolumeClaim {claim.name} is Pending: no volume is bound to it yet; see kubectl"
            f" describe pvc {claim.name}",
        )
    return _downloading(pod)


def _failed(pod: DownloadPod) -> _Finding:
    reason, message = pod.said.get("reason"), pod.said.get("message")
    times = f", tried {pod.restart_count + 1} times" if pod.restart_count else ""
    if isinstance(reason, str) and isinstance(message, str) and reason:
        return _Finding(reason, f"{message}; {_RETRY}{times}")
    kind = f" ({pod.end_reason})" if pod.end_reason not in ("", "Error") else ""
    return _Finding(
        Reason.DOWNLOAD_FAILED,
        f"pod {pod.name} ended with exit code {pod.exit_code}{kind}: {telling_line(pod.words)};"
        f" {_RETRY}{times}",
    )


def _downloading(pod: DownloadPod) -> _Finding:
    progress = pod.progress
    if progress is None:
        state = "runs" if pod.running else f"starts ({pod.waiting_reason or 'not scheduled yet'})"
        return _Finding(Reason.DOWNLOADING, f"pod {pod.name} {state}")
    if progress.phase == "Waiting":
        return _Finding(
            Reason.DOWNLOADING, "another resource fetches the same model to this claim; waiting for it"
        )
    if progress.total_bytes <= 0:
        return _Finding(Reason.DOWNLOADING, "asking the hub for the model's files")
    return _Finding(
        Reason.DOWNLOADING,
        f"{progress.percent} % of {progress.total_bytes // _MIB} MiB fetched",
        {"percent": progress.percent, "sizeBytes": progress.total_bytes},
    )


def _loaded(spec: StructuredLLMSpec, pods: tuple[Pod, ...]) -> Condition | None:
    """Speak for a model that engines fetch or read themselves: only when one of them told something."""
    if not (is_hub_model(spec) or claim_name(spec, "") or image_reference(spec)):
        return None
    alive = [pod for pod in pods if not pod.terminating]
    for pod in alive:
        if pod.container_ready:
            continue
        image = image_reference(spec)
        if image is not None and pod.waiting_reason in PULL_REASONS and image in pod.waiting_message:
            text = f"pod {pod.name}: {pod.waiting_reason}: {pod.waiting_message}; check spec.model.uri"
            return Condition(api.MODEL_READY, FALSE, Reason.IMAGE_PULL_FAILED, text)
        words = pod.last_termination.message if pod.last_termination is not None else ""
        reason = recognise(words)
        if reason is not None:
            text = f"pod {pod.name}: {telling_line(words)}; {CURES[reason]}"
            return Condition(api.MODEL_READY, FALSE, reason, text)
    if any(pod.container_ready for pod in alive):
        return Condition(api.MODEL_READY, TRUE, Reason.MODEL_LOADED, "an engine has loaded the model")
    return None


def held_workload() -> Condition:
    """Return WorkloadReady while no pod is made because the model is not there."""
    return Condition(api.WORKLOAD_READY, FALSE, Reason.PENDING, "pods are made when ModelReady is True")
