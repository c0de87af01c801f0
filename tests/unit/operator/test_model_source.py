"""How each source of a model is rendered into the engine's pod."""

from typing import Any

import pytest

from structuredllm_operator.plan.model_source import needs_hub
from tests.unit.operator.builders import raw_spec, spec
from tests.unit.operator.test_workload import children, container

CACHE = {"claimName": "models"}


def rendered(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return (pod spec, engine container, its plain environment)."""
    raw = raw_spec(model=model)
    pod = children(raw)["Deployment"]["spec"]["template"]["spec"]
    engine = container(raw)
    return pod, engine, {one["name"]: one.get("value", "") for one in engine["env"]}


def test_an_image_is_mounted_as_the_model() -> None:
    uri = "oci://registry.example:5000/models/qwen@sha256:" + "a" * 64
    pod, engine, env = rendered({"uri": uri, "path": "models/qwen"})
    reference = {"reference": uri.removeprefix("oci://"), "pullPolicy": "IfNotPresent"}
    assert {"name": "model", "image": reference} in pod["volumes"]
    assert {"name": "model", "mountPath": "/models/oci", "readOnly": True} in engine["volumeMounts"]
    assert engine["args"][0] == "/models/oci/models/qwen"
    assert "HF_HOME" not in env
    assert rendered({"uri": uri})[1]["args"][0] == "/models/oci"


@pytest.mark.parametrize(
    ("cache", "claim"), [({"claimName": "models"}, "models"), ({"size": "20Gi"}, "toy-model")]
)
def test_a_cached_model_is_a_folder_on_the_claim_and_the_hub_is_shut(
    cache: dict[str, str], claim: str
) -> None:
    model = {
        "uri": "hf://org/m",
        "revision": "refs/pr/1",
        "secretRef": {"name": "s", "key": "k"},
        "cache": cache,
    }
    pod, engine, env = rendered(model)
    assert engine["args"][0] == "/models/cache/org--m@refs%2Fpr%2F1"
    assert not any(arg.startswith("--revision") for arg in engine["args"])
    assert {"name": "model", "persistentVolumeClaim": {"claimName": claim}} in pod["volumes"]
    assert {"name": "model", "mountPath": "/models/cache", "readOnly": True} in engine["volumeMounts"]
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert "HF_TOKEN" not in env, "an engine whose model was fetched for it gets no token"
    assert not needs_hub(spec(model=model))


@pytest.mark.parametrize("revision", ["..", ".", "a/../../b", "/etc"])
def test_a_revision_cannot_leave_the_claim(revision: str) -> None:
    _, engine, _ = rendered({"uri": "hf://org/m", "revision": revision, "cache": CACHE})
    folder = engine["args"][0].removeprefix("/models/cache/")
    assert "/" not in folder
    assert folder not in (".", "..")


def test_without_cache_engines_fetch_for_themselves() -> None:
    _, engine, env = rendered({"uri": "hf://org/m", "secretRef": {"name": "s", "key": "k"}})
    assert engine["args"][0] == "org/m"
    assert "HF_TOKEN" in env
    assert "HF_HUB_OFFLINE" not in env
    assert needs_hub(spec(model={"uri": "hf://org/m"}))


def test_offline_is_told_to_the_engine_and_the_users_word_is_last() -> None:
    _, _, env = rendered({"uri": "pvc://models/qwen", "offline": True})
    assert env["HF_HUB_OFFLINE"] == "1"
    raw = raw_spec(
        model={"uri": "hf://org/m", "cache": CACHE},
        engine={"image": "i", "env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]},
    )
    names = {one["name"]: one.get("value") for one in container(raw)["env"]}
    assert names["HF_HUB_OFFLINE"] == "0"
