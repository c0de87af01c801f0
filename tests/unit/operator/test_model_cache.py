"""Claim and download Job: deterministic, restricted, made anew only when something that matters changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from structuredllm_operator.plan.model_cache import Downloader, build_claim, build_job, job_name
from structuredllm_operator.plan.plan import owner_reference
from tests.unit.operator.builders import spec

GOLDEN = Path(__file__).parent / "golden" / "model_cache.json"
MODEL = {
    "uri": "hf://org/m",
    "revision": "v1",
    "secretRef": {"name": "hf-token", "key": "token"},
    "cache": {"size": "20Gi", "storageClassName": "nfs"},
}
MORE = {
    "engine": {
        "image": "example/engine:1",
        "env": [
            {"name": "HF_ENDPOINT", "value": "http://mirror"},
            {"name": "HTTPS_PROXY", "value": "http://proxy"},
            {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
        ],
    },
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
OWNER = owner_reference("toy", "uid-1")
DOWNLOADER = Downloader("example/operator:1")


def job(model: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return the Job."""
    return build_job(spec(model=model or MODEL, **(more or MORE)), "toy", "ns", OWNER, DOWNLOADER)


def test_claim_and_job_are_as_in_the_golden_file() -> None:
    wanted = spec(model=MODEL, **MORE)
    rendered = {"claim": build_claim(wanted, "toy", "ns", OWNER), "job": job()}
    assert rendered == json.loads(GOLDEN.read_text())


def test_an_existing_claim_is_not_made() -> None:
    assert build_claim(spec(model={**MODEL, "cache": {"claimName": "models"}}), "toy", "ns", OWNER) is None


def test_the_pod_passes_restricted_and_is_no_engine() -> None:
    made = job()
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["automountServiceAccountToken"] is False
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "model-download", "the Service must not select it"
    assert [one["name"] for one in container["env"]] == ["HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY"]


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "hf://org/other"},
        {"revision": "v2"},
        {"secretRef": {"name": "other", "key": "token"}},
        {"cache": {"claimName": "models"}},
        {"offline": True},
    ],
)
def test_what_matters_to_the_download_makes_a_new_job(change: dict[str, Any]) -> None:
    assert job_name(spec(model={**MODEL, **change}), "toy") != job_name(spec(model=MODEL), "toy")


@pytest.mark.parametrize(
    "change", [{"replicas": 3}, {"engine": {"image": "example/engine:2"}}, {"parallelism": {"tensor": 2}}]
)
def test_what_does_not_matter_leaves_the_job(change: dict[str, Any]) -> None:
    assert job_name(spec(model=MODEL, **change), "toy") == job_name(spec(model=MODEL), "toy")


def test_names_fit() -> None:
    assert len(job_name(spec(model=MODEL), "a" * 40)) <= 63


def test_offline_is_handed_to_the_download() -> None:
    args = job({**MODEL, "offline": True})["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == "--offline"
