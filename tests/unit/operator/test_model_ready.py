"""What ModelReady says in each state, what is held back meanwhile, and what is never done twice."""

import dataclasses
from typing import Any

import pytest

from structuredllm_operator.plan.model_cache import Downloader, content_key, job_name
from structuredllm_operator.plan.observed import Child, Observed, Termination
from structuredllm_operator.plan.observed_model import (
    Claim,
    DownloadJob,
    DownloadPod,
    ModelObserved,
    Progress,
)
from structuredllm_operator.plan.plan import Plan, Ref, make_plan
from structuredllm_operator.report import Report, make_report
from tests.unit.operator.builders import observed, passed_gate, pod, raw_spec, revision, spec

MODEL = {"uri": "hf://org/m", "cache": {"claimName": "models"}}
RAW = raw_spec(model=MODEL)
JOB = job_name(spec(model=MODEL), "toy")
DOWNLOADER = Downloader("example/operator:1")
BOUND = Claim("models", "claim-1", "Bound")
NOW = "2026-01-01T00:00:00Z"


def seen(job: DownloadJob | None = None, claim: Claim | None = BOUND) -> ModelObserved:
    """Return what the cluster shows."""
    return ModelObserved(claim, (job,) if job is not None else ())


def running(**changes: Any) -> DownloadJob:
    """Return a Job whose pod is as given."""
    return DownloadJob(JOB, pod=DownloadPod("toy-model-x", **changes))


def failing(reason: str, message: str = "words", **changes: Any) -> DownloadJob:
    """Return a Job whose pod ended with this outcome."""
    return running(exit_code=1, said={"reason": reason, "message": message}, restart_count=2, **changes)


def decide(snapshot: Observed, downloader: Downloader | None = DOWNLOADER) -> tuple[Plan, Report]:
    """Return plan and report."""
    plan = make_plan(snapshot, {}, 0.0, downloader)
    return plan, make_report(snapshot, plan, now=NOW)


def model_ready(report: Report) -> tuple[str, str, str]:
    """Return (status, reason, message) of ModelReady."""
    (one,) = [one for one in report.status["conditions"] if one["type"] == "ModelReady"]
    return one["status"], one["reason"], one["message"]


def kinds(plan: Plan) -> list[str]:
    """Return the kinds that are applied, in order."""
    return [child["kind"] for child in plan.apply]


def test_first_the_job_then_the_engines() -> None:
    plan, report = decide(observed(raw=RAW, model=seen()))
    assert kinds(plan) == ["ServiceAccount", "Job", "Service"]
    assert plan.revision, "the revision to come is known"
    assert model_ready(report)[:2] == ("False", "Downloading")
    done = DownloadJob(
        JOB, succeeded=True, pod=DownloadPod("x", said={"commit": "c" * 40, "sizeBytes": 3 << 20})
    )
    plan, report = decide(observed(raw=RAW, model=seen(done)))
    assert kinds(plan) == ["ServiceAccount", "Service", "Deployment"]
    assert model_ready(report) == (
        "True",
        "ModelCached",
        "the model is on PersistentVolumeClaim models, its checksums were right (commit cccccccccccc, 3 MiB)",
    )
    assert report.status["model"] == {
        "commit": "c" * 40,
        "claimName": "models",
        "claimUid": "claim-1",
        "key": content_key(spec(model=MODEL), "toy"),
        "ready": True,
        "percent": 100,
        "sizeBytes": 3 << 20,
    }


def finished() -> dict[str, Any]:
    """Return the status after a download."""
    job = DownloadJob(JOB, succeeded=True)
    return dict(decide(observed(raw=RAW, model=seen(job)))[1].status)


def test_a_finished_download_is_remembered_when_its_job_is_gone() -> None:
    plan, report = decide(observed(raw=RAW, model=seen(), status=finished()))
    assert kinds(plan) == ["ServiceAccount", "Service", "Deployment"]
    assert model_ready(report)[0] == "True"
    assert not report.changed


def test_what_is_remembered_outlives_a_spec_that_is_wrong_for_a_while() -> None:
    """Otherwise the mended spec would be not ready until a second Job had looked."""
    wrong = raw_spec(model=MODEL, engine={"image": "i", "args": ["--tensor-par=2"]})
    _, report = decide(observed(raw=wrong, model=seen(), status=finished()))
    assert report.status["model"] == finished()["model"]
    foreign = (Child("Service", False),)
    _, report = decide(observed(raw=RAW, model=seen(), status=finished(), children=foreign))
    assert report.status["model"] == finished()["model"]


def test_another_claim_of_the_same_name_is_empty() -> None:
    other = dataclasses.replace(BOUND, uid="claim-2")
    plan, report = decide(observed(raw=RAW, model=seen(claim=other), status=finished()))
    assert "Job" in kinds(plan)
    assert model_ready(report)[:2] == ("False", "Downloading")


def test_engines_that_run_stay_while_a_new_model_is_fetched() -> None:
    """Neither applied nor deleted: the old revision serves until the new model is there."""
    raw = raw_spec(model={**MODEL, "revision": "v2"})
    old = pod(revision="old", gate=passed_gate(), ready=True)
    children = tuple(Child(kind, True) for kind in ("ServiceAccount", "Service", "Deployment"))
    plan, report = decide(
        observed(old, raw=raw, model=seen(DownloadJob(JOB)), status=finished(), children=children)
    )
    assert "Deployment" not in kinds(plan)
    assert plan.delete == (Ref("Job", "ns", JOB),), "the Job of the old model is of no use any more"
    assert model_ready(report)[:2] == ("False", "Downloading")
    ready = next(one for one in report.status["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Downloading")


def test_a_job_is_applied_once() -> None:
    """Its template cannot be changed: a new operator image must not touch it."""
    plan, _ = decide(observed(raw=RAW, model=seen(running(running=True))), Downloader("example/operator:2"))
    assert "Job" not in kinds(plan)


def test_progress() -> None:
    job = running(running=True, progress=Progress("Downloading", 3 << 20, 8 << 20))
    plan, report = decide(observed(raw=RAW, model=seen(job)))
    assert model_ready(report) == ("False", "Downloading", "37 % of 8 MiB fetched")
    assert (report.status["model"]["percent"], report.status["model"]["ready"]) == (37, False)
    assert plan.look_again_seconds == 5.0
    workload = next(one for one in report.status["conditions"] if one["type"] == "WorkloadReady")
    assert workload["message"] == "pods are made when ModelReady is True"


def test_a_byte_more_is_no_new_status() -> None:
    """Each write of the status brings an event and with it the next look: only whole percents are told."""
    first = running(running=True, progress=Progress("Downloading", 3_000_000, 8_000_000))
    second = running(running=True, progress=Progress("Downloading", 3_000_001, 8_000_000))
    _, report = decide(observed(raw=RAW, model=seen(first)))
    _, report = decide(observed(raw=RAW, model=seen(second), status=dict(report.status)))
    assert not report.changed


@pytest.mark.parametrize(
    "reason",
    [
        "AuthFailed",
        "RevisionNotFound",
        "RepositoryNotFound",
        "DiskFull",
        "CacheNotWritable",
        "ChecksumMismatch",
        "HubUnreachable",
        "NotCached",
    ],
)
def test_the_downloads_own_reason_is_the_conditions(reason: str) -> None:
    plan, report = decide(observed(raw=RAW, model=seen(failing(reason, "what; what to do"))))
    assert model_ready(report) == (
        "False",
        reason,
        "what; what to do; it is tried again by itself, at least every 5 minutes, tried 3 times",
    )
    ready = next(one for one in report.status["conditions"] if one["type"] == "Ready")
    assert ready["reason"] == reason
    assert [note.type for note in report.events if note.reason == reason] == ["Warning", "Warning"]
    assert "Deployment" not in kinds(plan)


def test_a_failure_stays_on_show_until_bytes_move_again() -> None:
    starting = failing("AuthFailed", running=True, progress=Progress("Resolving"))
    assert model_ready(decide(observed(raw=RAW, model=seen(starting)))[1])[1] == "AuthFailed"
    moving = failing("AuthFailed", running=True, progress=Progress("Downloading", 1, 100))
    assert model_ready(decide(observed(raw=RAW, model=seen(moving)))[1])[1] == "Downloading"


@pytest.mark.parametrize(
    ("job", "claim", "reason", "words"),
    [
        (None, None, "PVCMissing", "PersistentVolumeClaim models does not exist: create it"),
        (None, Claim("models", "c", "Lost"), "PVCPending", "lost its volume"),
        (running(), Claim("models", "c", "Pending"), "PVCPending", "no volume is bound to it yet"),
        (
            running(unschedulable="0/1 nodes: pod has unbound immediate PersistentVolumeClaims"),
            Claim("models", "c", "Pending"),
            "PVCPending",
            "unbound immediate",
        ),
        (running(unschedulable="0/1 nodes: taint"), BOUND, "Unschedulable", "0/1 nodes: taint"),
        (
            running(waiting_reason="ImagePullBackOff", waiting_message="no such image"),
            BOUND,
            "ImagePullFailed",
            "no such image; check the operator's --downloader-image",
        ),
        (
            running(exit_code=137, end_reason="OOMKilled", words=""),
            BOUND,
            "DownloadFailed",
            "exit code 137 (OOMKilled)",
        ),
        (DownloadJob(JOB, failed="deadline"), BOUND, "DownloadFailed", "was given up (deadline): delete it"),
        (DownloadJob(JOB), BOUND, "Downloading", "waiting for the pod"),
    ],
)
def test_every_other_state(job: DownloadJob | None, claim: Claim | None, reason: str, words: str) -> None:
    _, report = decide(observed(raw=RAW, model=seen(job, claim)))
    status, found, message = model_ready(report)
    assert (status, found) == ("False", reason)
    assert words in message


def test_an_operator_without_an_image_says_so() -> None:
    _, report = decide(observed(raw=RAW, model=seen()), None)
    assert model_ready(report)[1] == "DownloaderMissing"
    assert "--downloader-image" in model_ready(report)[2]


def test_a_claim_is_made_before_its_job() -> None:
    raw = raw_spec(model={"uri": "hf://org/m", "cache": {"size": "20Gi"}})
    plan, _ = decide(observed(raw=raw, model=ModelObserved()))
    assert kinds(plan) == ["ServiceAccount", "PersistentVolumeClaim", "Job", "Service"]


def test_a_claim_of_someone_else_is_not_taken() -> None:
    raw = raw_spec(model={"uri": "hf://org/m", "cache": {"size": "20Gi"}})
    plan, report = decide(observed(raw=raw, model=seen(claim=Claim("toy-model", "c", "Bound"))))
    assert model_ready(report)[1] == "NameConflict"
    assert kinds(plan) == ["ServiceAccount", "Service"]


def test_jobs_of_no_use_are_deleted_when_the_cache_is_given_up() -> None:
    plan, _ = decide(observed(raw=raw_spec(), model=seen(DownloadJob(JOB), None)))
    assert plan.delete == (Ref("Job", "ns", JOB),)
    foreign = DownloadJob(JOB, owned=False)
    assert decide(observed(raw=raw_spec(), model=seen(foreign, None)))[0].delete == ()


@pytest.mark.parametrize(
    ("claim", "reason"), [(None, "PVCMissing"), (Claim("models", "c", "Pending"), "PVCPending")]
)
def test_a_claim_with_a_model_is_looked_at_but_engines_are_made(claim: Claim | None, reason: str) -> None:
    """A volume may be bound only when its first pod comes."""
    raw = raw_spec(model={"uri": "pvc://models/qwen"})
    plan, report = decide(observed(raw=raw, model=seen(claim=claim)))
    assert "Deployment" in kinds(plan)
    assert model_ready(report)[1] == reason


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", "DiskFull"),
        ("huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.", "RevisionNotFound"),
        (
            "OSError: v9 is not a valid git identifier (branch name, tag name or commit id)",
            "RevisionNotFound",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "AuthFailed"),
        ("huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden", "AuthFailed"),
        ("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error", "RepositoryNotFound"),
        ("ValueError: Invalid repository ID or local directory specified: 'x'", "ModelNotFound"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: no snapshot", "HubUnreachable"),
    ],
)
def test_an_engines_own_words_about_its_model(words: str, reason: str) -> None:
    raw = raw_spec(model={"uri": "hf://org/m"})
    end = Termination(1, "Error", f"INFO starting\n{words}\n", NOW)
    crashed = pod(
        revision=revision(raw), running=False, container_ready=False, ready=False, last_termination=end
    )
    _, report = decide(observed(crashed, raw=raw))
    status, found, message = model_ready(report)
    assert (status, found) == ("False", reason)
    assert words[:20] in message
    assert ";" in message, "a cure is named"


def test_a_crash_for_another_cause_is_not_the_models() -> None:
    raw = raw_spec(model={"uri": "hf://org/m"})
    end = Termination(1, "Error", "RuntimeError: CUDA out of memory", NOW)
    crashed = pod(revision=revision(raw), running=False, container_ready=False, last_termination=end)
    _, report = decide(observed(crashed, raw=raw))
    assert not [one for one in report.status["conditions"] if one["type"] == "ModelReady"]


def test_an_image_that_cannot_be_pulled_as_a_model() -> None:
    raw = raw_spec(model={"uri": "oci://registry.example/m:1"})
    text = 'Back-off pulling image "registry.example/m:1"'
    waiting = pod(
        revision=revision(raw),
        running=False,
        container_ready=False,
        waiting_reason="ImagePullBackOff",
        waiting_message=text,
    )
    _, report = decide(observed(waiting, raw=raw))
    assert model_ready(report)[1] == "ImagePullFailed"
    assert text in model_ready(report)[2]


def test_a_loaded_model_and_one_in_the_image() -> None:
    raw = raw_spec(model={"uri": "hf://org/m"})
    _, report = decide(observed(pod(revision=revision(raw)), raw=raw))
    assert model_ready(report)[:2] == ("True", "ModelLoaded")
    _, report = decide(observed(pod()))
    assert not [one for one in report.status["conditions"] if one["type"] == "ModelReady"]
