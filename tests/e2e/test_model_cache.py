"""A model on a claim, in a real cluster: real Job, kubelet and volume; the hub is a fake on this machine.

No engine runs (spec.replicas is 0): what is shown is how the model comes, and what is told when it does not.
Only on the embedded cluster, whose node is this machine: the volume is a folder of it.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NAMESPACE
from tests.fakes.fake_hub import COMMIT, FakeHub
from tools.demo.resources import condition
from tools.demo.stage import Stage

pytestmark = pytest.mark.timeout(300)

NAME = "e2e-cached"
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 8000}


@pytest.fixture
def hub(stage: Stage) -> Iterator[FakeHub]:
    """A hub that pods can reach and that wants a token."""
    if stage.cluster.name != "embedded":
        pytest.skip("the node of this cluster is another machine")
    nodes = (stage.kubectl.get("nodes") or {})["items"]
    addresses = {one["type"]: one["address"] for one in nodes[0]["status"]["addresses"]}
    with FakeHub(files=dict(FILES), token="right", host=addresses["InternalIP"]) as running:
        yield running


@pytest.fixture
def volume(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A claim `models` on a folder of this machine that the operator's user may write."""
    folder = tmp_path_factory.mktemp("volume")
    for path in (folder, *list(folder.parents)[:2]):
        path.chmod(0o755)
    folder.chmod(0o777)
    size = {"storage": "1Gi"}
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": "none"}
    stage.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": NAME},
            "spec": {**common, "capacity": size, "hostPath": {"path": str(folder)}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": NAMESPACE},
            "spec": {**common, "volumeName": NAME, "resources": {"requests": size}},
        },
    )
    yield folder
    stage.kubectl.run("delete", "sllm", NAME, "-n", NAMESPACE, "--ignore-not-found", check=False)
    stage.kubectl.run("delete", "pvc", "models", "-n", NAMESPACE, "--wait=false", check=False)
    stage.kubectl.run("delete", "pv", NAME, "--wait=false", check=False)
    shutil.rmtree(folder, ignore_errors=True)


def token(value: str) -> dict[str, Any]:
    """Return the Secret with a hub token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "e2e-hub", "namespace": NAMESPACE},
        "stringData": {"token": value},
    }


def wait(stage: Stage, reason: str, seconds: float) -> dict[str, Any]:
    """Wait for a reason of ModelReady; a failure shows the condition that is there."""
    deadline = time.monotonic() + seconds
    while True:
        body = stage.kubectl.get("sllm", NAME, "-n", NAMESPACE) or {}
        found = condition(body, "ModelReady")
        if found.get("reason") == reason:
            return body
        assert time.monotonic() < deadline, f"not {reason} within {seconds} s: {found}"
        time.sleep(1)


def test_a_wrong_token_is_told_and_its_correction_brings_the_model(
    stage: Stage, hub: FakeHub, volume: Path
) -> None:
    resource = {
        "apiVersion": "structuredllm.io/v1alpha1",
        "kind": "StructuredLLM",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "replicas": 0,
            "model": {
                "uri": "hf://org/model",
                "secretRef": {"name": "e2e-hub", "key": "token"},
                "cache": {"claimName": "models"},
            },
            "engine": {
                "image": stage.engine_image,
                "accelerator": "cpu",
                "env": [{"name": "HF_ENDPOINT", "value": hub.url}],
            },
        },
    }
    stage.kubectl.apply(token("wrong"), resource)
    body = wait(stage, "AuthFailed", 90)
    assert "the token is wrong or may not read it" in condition(body, "ModelReady")["message"]
    stage.kubectl.apply(token("right"))
    body = wait(stage, "ModelCached", 120)
    assert body["status"]["model"]["commit"] == COMMIT
    assert body["status"]["model"]["sizeBytes"] == sum(len(one) for one in FILES.values())
    for name, content in FILES.items():
        assert (volume / "org--model@main" / name).read_bytes() == content
