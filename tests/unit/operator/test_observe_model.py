"""Claim, Jobs and pods as the API gives them become our values; only what is needed is read."""

import json
from typing import Any, cast

import httpx
import pytest

from structuredllm_operator.kube.client import Kind, KubeClient
from structuredllm_operator.model_progress import HttpProgress
from structuredllm_operator.observe_model import observe_model, to_download_pod
from structuredllm_operator.plan.observed_model import Claim, ModelObserved, Progress

OWNER = [{"uid": "uid-1", "controller": True}]
CACHED = {"uri": "hf://org/m", "cache": {"claimName": "models"}}


class Api:
    """Answers reads from dicts, and notes them."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = bodies
        self.asked: list[str] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object of this kind and name."""
        self.asked.append(f"{kind.kind} {name}")
        return next(
            (
                one
                for one in self.bodies
                if one["kind"] == kind.kind and one["metadata"]["name"] == name and namespace == "ns"
            ),
            None,
        )

    async def list(self, kind: Kind, namespace: str, *, label_selector: str) -> list[dict[str, Any]]:
        """Return the objects of this kind."""
        self.asked.append(f"{kind.kind}s {label_selector}")
        return [one for one in self.bodies if one["kind"] == kind.kind and namespace == "ns"]


class Told:
    """Says the same of every download."""

    async def fetch(self, ip: str) -> Progress | None:
        """Return it."""
        return Progress("Downloading", 1, 2) if ip == "10.0.0.9" else None


def claim(**status: Any) -> dict[str, Any]:
    """Return a claim."""
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "uid": "claim-1"},
        "status": status,
    }


def job(name: str, *conditions: dict[str, str], owners: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a Job."""
    metadata = {"name": name, "ownerReferences": OWNER if owners is None else owners}
    return {"kind": "Job", "metadata": metadata, "status": {"conditions": list(conditions)}}


def pod(name: str, job_name: str, created: str, **status: Any) -> dict[str, Any]:
    """Return a pod of a Job."""
    labels = {"batch.kubernetes.io/job-name": job_name}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": created},
        "status": status,
    }


async def look(api: Api, model: dict[str, Any], status: dict[str, Any] | None = None) -> ModelObserved | None:
    """Observe a resource with this model."""
    resource = {
        "metadata": {"namespace": "ns", "name": "toy", "uid": "uid-1"},
        "spec": {"model": model},
        "status": status or {},
    }
    return await observe_model(cast(KubeClient, api), resource, Told())


@pytest.mark.parametrize("model", [{"uri": "file:///m"}, {"uri": "hf://o/m"}, {"uri": "oci://r/m"}, {}])
async def test_a_model_without_a_claim_costs_no_call(model: dict[str, Any]) -> None:
    api = Api()
    assert await look(api, model) is None
    assert api.asked == []


async def test_a_claim_with_a_model_is_one_call() -> None:
    api = Api(claim(phase="Bound"))
    assert await look(api, {"uri": "pvc://models/qwen"}) == ModelObserved(
        Claim("models", "claim-1", "Bound"), ()
    )
    assert api.asked == ["PersistentVolumeClaim models"]


async def test_the_claim_that_is_made_has_the_resources_name() -> None:
    api = Api()
    assert await look(api, {"uri": "hf://o/m", "cache": {"size": "1Gi"}}) == ModelObserved()
    assert api.asked[0] == "PersistentVolumeClaim toy-model"


async def test_jobs_are_still_seen_when_the_cache_was_given_up() -> None:
    seen = await look(Api(job("toy-model-1")), {"uri": "file:///m"}, {"model": {"ready": True}})
    assert seen is not None
    assert [one.name for one in seen.jobs] == ["toy-model-1"]


async def test_a_running_download_is_asked_and_the_newest_pod_counts() -> None:
    running = [{"name": "download", "state": {"running": {}}}]
    api = Api(
        claim(phase="Bound"),
        job("toy-model-1"),
        pod("b-old", "toy-model-1", "2026-01-01T00:00:00Z", phase="Failed"),
        pod("a-new", "toy-model-1", "2026-01-02T00:00:00Z", podIP="10.0.0.9", containerStatuses=running),
        pod("other", "toy-model-2", "2026-01-03T00:00:00Z"),
    )
    seen = await look(api, CACHED)
    assert seen is not None
    (found,) = seen.jobs
    assert found.pod is not None
    assert (found.pod.name, found.pod.running, found.pod.progress) == (
        "a-new",
        True,
        Progress("Downloading", 1, 2),
    )


async def test_what_a_job_is() -> None:
    api = Api(
        job("a", {"type": "Complete", "status": "True"}),
        job("b", {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}),
        job("c", owners=[{"uid": "other", "controller": True}]),
    )
    seen = await look(api, CACHED)
    assert seen is not None
    assert [(one.name, one.succeeded, one.failed, one.owned) for one in seen.jobs] == [
        ("a", True, "", True),
        ("b", False, "too long", True),
        ("c", False, "", False),
    ]


async def test_a_claim_that_is_being_deleted_is_not_bound() -> None:
    body = claim(phase="Bound")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    seen = await look(Api(body), CACHED)
    assert seen is not None
    assert seen.claim is not None
    assert seen.claim.phase == "Terminating"


@pytest.mark.parametrize("where", ["state", "lastState"])
def test_the_last_words_of_a_download(where: str) -> None:
    said = {"reason": "DiskFull", "message": "the claim is full"}
    ended = {"exitCode": 1, "reason": "Error", "message": json.dumps(said)}
    states: dict[str, Any] = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
    states[where] = {"terminated": ended}
    body = pod("p", "j", "", containerStatuses=[{"name": "download", "restartCount": 3, **states}])
    found = to_download_pod(body)
    assert (found.exit_code, found.restart_count, dict(found.said)) == (1, 3, said)


@pytest.mark.parametrize("words", ["Killed", "[1]", '"text"', "", "{"])
def test_a_crash_leaves_words_that_are_no_json(words: str) -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": words}}
    found = to_download_pod(pod("p", "j", "", containerStatuses=[{"name": "download", "state": ended}]))
    assert (found.said, found.words, found.end_reason) == ({}, words, "OOMKilled")


def test_the_schedulers_words() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    assert to_download_pod(pod("p", "j", "", conditions=[condition])).unschedulable == "0/1 nodes"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            httpx.Response(200, json={"phase": "Downloading", "bytes": 5, "totalBytes": 9, "new": 1}),
            Progress("Downloading", 5, 9),
        ),
        (httpx.Response(500), None),
        (httpx.Response(200, text="x" * 100_000), None),
        (httpx.Response(200, json={"phase": "Downloading", "bytes": -1, "totalBytes": 9}), None),
    ],
)
async def test_progress_over_http(answer: httpx.Response, found: Progress | None) -> None:
    asked: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return answer

    async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as client:
        source = HttpProgress(client, timeout_seconds=1.0)
        assert await source.fetch("fd00::1") == found
    assert asked == ["http://[fd00::1]:9464/progress"]
