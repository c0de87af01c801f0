"""Rendering is deterministic, golden-checked, and rolls engines only when the template really changes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_operator.errors import SpecError
from structuredllm_operator.plan.observed import Child
from structuredllm_operator.plan.plan import Ref, build_children, make_plan, parse_spec
from tests.unit.operator.builders import observed, raw_spec, revision

GOLDEN = Path(__file__).parent / "golden" / "children.json"

FULL = {
    "model": {
        "uri": "hf://org/model",
        "revision": "abc",
        "name": "served",
        "secretRef": {"name": "hf-token", "key": "token"},
    },
    "engine": {
        "image": "example/engine:1",
        "args": ["--max-model-len=8192"],
        "env": [
            {"name": "VLLM_PLUGINS", "value": "other"},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    },
    "parallelism": {"tensor": 2, "pipeline": 3},
    "replicas": 2,
    "resources": {"requests": {"cpu": "4", "memory": "32Gi"}, "limits": {}},
    "nodeSelector": {"b": "2", "a": "1"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


def children(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return kind -> manifest."""
    snapshot = observed(raw=raw)
    return {child["kind"]: child for child in build_children(snapshot, parse_spec(snapshot.spec))}


def container(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the engine container."""
    found: dict[str, Any] = children(raw)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_children_are_as_in_the_golden_file() -> None:
    """A difference here restarts every engine of every user on upgrade: change the file only on purpose."""
    assert children(FULL) == json.loads(GOLDEN.read_text())


def test_same_input_same_bytes() -> None:
    assert json.dumps(children(FULL)) == json.dumps(children(json.loads(json.dumps(FULL))))


def test_order_of_keys_does_not_matter() -> None:
    other = {
        **FULL,
        "nodeSelector": {"a": "1", "b": "2"},
        "resources": {"requests": {"memory": "32Gi", "cpu": "4"}},
    }
    assert revision(FULL) == revision(other)


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"rolloutStrategy": {"maxSurge": 1, "maxUnavailable": 0}},
        {"warmup": {"policy": "Disabled", "maxRetries": 9}},
        {"disruption": {"maxUnavailable": 2}},
        {"structuredOutput": {"validation": "Off"}},
    ],
)
def test_what_is_not_in_the_pod_does_not_restart_engines(change: dict[str, Any]) -> None:
    assert revision(raw_spec(**change)) == revision(raw_spec())


@pytest.mark.parametrize(
    "change",
    [
        {"parallelism": {"tensor": 1, "pipeline": 2}},
        {"engine": {"image": "example/engine:2"}},
        {"engine": {"image": "example/engine:1", "patches": "Disabled"}},
        {"structuredOutput": {"backend": "guidance"}},
        {"shutdown": {"drainSeconds": 31}},
    ],
)
def test_what_is_in_the_pod_makes_a_new_revision(change: dict[str, Any]) -> None:
    assert revision(raw_spec(**change)) != revision(raw_spec())


def test_arguments_follow_the_spec_and_the_users_come_last() -> None:
    args = container(FULL)["args"]
    assert args[0] == "org/model"
    assert args[-1] == "--max-model-len=8192"
    for expected in (
        "--served-model-name=served",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=3",
        "--distributed-executor-backend=mp",
        "--async-scheduling",
        "--shutdown-timeout=30",
        "--revision=abc",
        '--structured-outputs-config={"backend":"xgrammar","disable_any_whitespace":true}',
    ):
        assert expected in args


def test_one_worker_needs_no_executor_and_async_can_be_off() -> None:
    args = container(
        raw_spec(parallelism={}, engine={"image": "i", "asyncScheduling": False, "accelerator": "cpu"})
    )["args"]
    assert not any(arg.startswith("--distributed-executor-backend") for arg in args)
    assert "--no-async-scheduling" in args
    assert "--async-scheduling" not in args


def test_environment_is_merged_with_unique_names() -> None:
    env = container(FULL)["env"]
    names = [one["name"] for one in env]
    assert len(names) == len(set(names))
    values = {one["name"]: one.get("value") for one in env}
    assert values["VLLM_PLUGINS"] == "other,structuredllm"
    assert values["STRUCTUREDLLM_PATCHES"] == "required"
    assert values["STRUCTUREDLLM_TELEMETRY_PORT"] == "9464"
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}} in env


def test_plugins_are_not_restricted_when_the_user_does_not() -> None:
    assert "VLLM_PLUGINS" not in [one["name"] for one in container(raw_spec())["env"]]


def test_a_claim_is_mounted_read_only_and_served_from_its_path() -> None:
    raw = raw_spec(model={"uri": "pvc://models/llama/8b"})
    pod = children(raw)["Deployment"]["spec"]["template"]["spec"]
    assert container(raw)["args"][0] == "/models/pvc/llama/8b"
    claim = {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    assert claim in pod["volumes"]
    assert {"name": "model", "mountPath": "/models/pvc", "readOnly": True} in container(raw)["volumeMounts"]


def test_gpus_are_tensor_times_pipeline_and_none_on_cpu() -> None:
    assert container(FULL)["resources"]["limits"] == {"nvidia.com/gpu": 6}
    cpu = container(raw_spec(engine={"image": "i", "accelerator": "cpu"}))
    assert "nvidia.com/gpu" not in json.dumps(cpu)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, "GPUCountMismatch", "must be 3"),
        ({"resources": {"requests": {"nvidia.com/gpu": "4"}}}, "GPUCountMismatch", "spec.resources.requests"),
        (
            {"engine": {"image": "i", "accelerator": "cpu"}, "resources": {"limits": {"amd.com/gpu": 1}}},
            "GPUCountMismatch",
            "accelerator is cpu",
        ),
        ({"engine": {"image": "i", "args": ["--tensor-par=2"]}}, "InvalidSpec", "--tensor-parallel-size"),
        ({"engine": {"image": "i", "args": ["--served_model=x"]}}, "InvalidSpec", "--served-model-name"),
        (
            {"engine": {"image": "i", "env": [{"name": "STRUCTUREDLLM_PATCHES"}]}},
            "InvalidSpec",
            "STRUCTUREDLLM_PATCHES",
        ),
        ({"unknown": 1}, "InvalidSpec", "spec.unknown"),
        ({"model": {}}, "InvalidSpec", "spec.model.uri"),
    ],
)
def test_impossible_specs_are_refused_with_field_and_cure(
    change: dict[str, Any], reason: str, words: str
) -> None:
    found = make_plan(observed(raw=raw_spec(**change)), {}, 0.0)
    assert isinstance(found.spec_error, SpecError)
    assert found.spec_error.reason == reason
    assert words in found.spec_error.message
    assert found.apply == ()
    assert found.delete == ()


def test_a_budget_exists_from_two_replicas_on_and_is_deleted_below() -> None:
    assert "PodDisruptionBudget" in children(raw_spec(replicas=2))
    assert "PodDisruptionBudget" not in children(raw_spec(replicas=1))
    left = make_plan(observed(children=(Child("PodDisruptionBudget", owned=True),)), {}, 0.0)
    assert left.delete == (Ref("PodDisruptionBudget", "ns", "toy-engine"),)


def test_nothing_is_planned_for_a_resource_that_is_being_deleted() -> None:
    found = make_plan(observed(deleting=True), {}, 0.0)
    assert found.apply == ()
    assert found.delete == ()


def test_children_are_owned_so_that_garbage_collection_takes_them() -> None:
    for child in children(FULL).values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
            "StructuredLLM",
            "toy",
            "uid-1",
            True,
        )


@given(
    tensor=st.integers(1, 8),
    pipeline=st.integers(1, 8),
    replicas=st.integers(0, 9),
    drain=st.integers(0, 600),
)
def test_any_valid_spec_renders_and_the_grace_covers_the_drain(
    tensor: int, pipeline: int, replicas: int, drain: int
) -> None:
    raw = raw_spec(
        parallelism={"tensor": tensor, "pipeline": pipeline},
        replicas=replicas,
        shutdown={"drainSeconds": drain},
    )
    pod = children(raw)["Deployment"]["spec"]["template"]["spec"]
    engine = pod["containers"][0]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == tensor * pipeline
    assert pod["terminationGracePeriodSeconds"] > engine["lifecycle"]["preStop"]["sleep"]["seconds"] + drain
