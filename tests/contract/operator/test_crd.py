"""The generated CRD on a real API server: accepted, complete, and strict with words that help."""

import copy
import subprocess
from typing import Any

import pytest

from structuredllm_operator.kube.client import STRUCTURED_LLM, KubeClient
from tests.contract.operator.conftest import CRD_PATH, as_yaml, resource
from tools.cluster.apiserver import ApiServer
from tools.cluster.binaries import ensure_tool
from tools.paths import repo_root

pytestmark = pytest.mark.timeout(180)

Change = dict[str, Any]


def changed(namespace: str, changes: Change, name: str = "toy") -> dict[str, Any]:
    """Return the small valid resource with values set at dotted paths of its spec."""
    body = copy.deepcopy(resource(namespace, name=name))
    for path, value in changes.items():
        node = body["spec"]
        *parents, last = path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return body


def refusal(api: ApiServer, body: dict[str, Any]) -> str:
    """Return all that kubectl prints when the server refuses the resource; nothing is stored."""
    argv = [
        str(ensure_tool("kubectl")),
        f"--kubeconfig={api.kubeconfig}",
        "create",
        "--dry-run=server",
        "-f",
        "-",
    ]
    done = subprocess.run(argv, input=as_yaml(body), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, f"accepted: {done.stdout}"
    return done.stderr


REFUSED: list[tuple[str, Change, str]] = [
    (
        "scheme",
        {"model.uri": "s3://bucket/x"},
        "spec.model.uri must be hf://org/repo, pvc://claim/path, oci://registry/image or file:///",
    ),
    ("image without registry", {"model.uri": "oci://image"}, "spec.model.uri must be"),
    ("cache elsewhere", {"model.cache": {"claimName": "a"}}, "spec.model.cache works only with an hf:// uri"),
    ("path elsewhere", {"model.path": "a"}, "spec.model.path works only with an oci:// uri"),
    (
        "cache of both kinds",
        {"model": {"uri": "hf://o/m", "cache": {"claimName": "a", "size": "1Gi"}}},
        "give exactly one",
    ),
    (
        "size that is none",
        {"model": {"uri": "hf://o/m", "cache": {"size": "big"}}},
        "spec.model.cache.size must be a quantity",
    ),
    ("cache of no kind", {"model": {"uri": "hf://o/m", "cache": {}}}, "give exactly one"),
    (
        "class of a claim that exists",
        {"model": {"uri": "hf://o/m", "cache": {"claimName": "a", "storageClassName": "b"}}},
        "are for a claim that is made",
    ),
    (
        "offline without a model",
        {"model": {"uri": "hf://o/m", "offline": True}},
        "spec.model.offline with an hf:// uri needs spec.model.cache",
    ),
    (
        "lmdeploy with a pipeline",
        {"engine.type": "lmdeploy"},
        "spec.parallelism.pipeline must be 1 with spec.engine.type lmdeploy",
    ),
    (
        "lmdeploy on cpu",
        {"engine.type": "lmdeploy", "engine.accelerator": "cpu", "parallelism.pipeline": 1},
        "spec.engine.accelerator must be gpu with spec.engine.type lmdeploy",
    ),
    (
        "lmdeploy with guidance",
        {
            "engine.type": "lmdeploy",
            "parallelism.pipeline": 1,
            "structuredOutput.backend": "guidance",
        },
        "spec.structuredOutput.backend must be xgrammar or auto",
    ),
    ("hf without org", {"model.uri": "hf://model"}, "spec.model.uri must be"),
    ("relative file", {"model.uri": "file://models"}, "spec.model.uri must be"),
    ("dots", {"model.uri": "pvc://claim/../x"}, "must not contain '..'"),
    ("revision", {"model.revision": "main"}, "spec.model.revision works only with an hf:// uri"),
    (
        "secret",
        {"model.secretRef": {"name": "a", "key": "b"}},
        "spec.model.secretRef works only with an hf:// uri",
    ),
    ("concurrency", {"parallelism.pipeline": 24}, "spec.warmup.burst.concurrency must be above"),
    (
        "requests",
        {"warmup.burst": {"requests": 4, "concurrency": 8}},
        "spec.warmup.burst.requests must be at least",
    ),
    ("rollout", {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 0}}, "must not both be 0"),
    (
        "gpu limit",
        {"resources.limits": {"nvidia.com/gpu": 2}},
        "spec.resources.limits: the GPU count of a pod must be",
    ),
    (
        "gpu as text",
        {"resources.limits": {"nvidia.com/gpu": "2"}},
        "spec.resources.limits: the GPU count of a pod must be",
    ),
    (
        "gpu request",
        {"resources.requests": {"nvidia.com/gpu": 1}},
        "spec.resources.requests: the GPU count of a pod must be",
    ),
    (
        "other gpu name",
        {"engine.gpuResourceName": "amd.com/gpu", "resources.limits": {"amd.com/gpu": 1}},
        "spec.resources.limits: the GPU count of a pod must be",
    ),
    (
        "gpu on cpu",
        {"engine.accelerator": "cpu", "resources.limits": {"nvidia.com/gpu": 3}},
        "spec.engine.accelerator is cpu",
    ),
    (
        "whitespace",
        {"structuredOutput.backend": "auto"},
        "disableAnyWhitespace needs backend xgrammar or guidance",
    ),
    ("backend", {"structuredOutput.backend": "outlines"}, "spec.structuredOutput.backend: Unsupported value"),
    ("tensor", {"parallelism.tensor": 0}, "spec.parallelism.tensor"),
    ("replicas", {"replicas": -1}, "spec.replicas"),
    ("no image", {"engine": {"accelerator": "cpu"}}, "spec.engine.image: Required value"),
    ("unknown field", {"scaling": {"minReplicas": 1}}, 'unknown field "spec.scaling"'),
    ("unknown nested", {"engine.patch": "x"}, 'unknown field "spec.engine.patch"'),
    (
        "owned env",
        {"engine.env": [{"name": "STRUCTUREDLLM_PATCHES", "value": "x"}]},
        "STRUCTUREDLLM_PATCHES is set by",
    ),
    (
        "plugins from",
        {"engine.env": [{"name": "VLLM_PLUGINS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        "VLLM_PLUGINS must be a plain value",
    ),
    (
        "env twice",
        {"engine.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "Duplicate value",
    ),
    (
        "env both",
        {"engine.env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
        "either value or valueFrom",
    ),
    ("env source", {"engine.env": [{"name": "A", "valueFrom": {}}]}, "exactly one of secretKeyRef"),
]


@pytest.mark.parametrize(("changes", "words"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_impossible_resources_are_refused_with_words_that_help(
    api: ApiServer, changes: Change, words: str
) -> None:
    assert words in refusal(api, changed("default", changes))


@pytest.mark.parametrize(
    "argument",
    [
        "--model=x",
        "--port=1",
        "--port",
        "--host=::",
        "--served-model-name=x",
        "--served_model_name",
        "--tensor-parallel-size=2",
        "-tp=2",
        "-tp",
        "-pp",
        "--pipeline-parallel-size=2",
        "--async-scheduling",
        "--no-async-scheduling",
        "--structured-outputs-config.backend=guidance",
        "--distributed-executor-backend=ray",
        "--config=/x.yaml",
    ],
)
def test_arguments_that_the_operator_sets_are_refused_by_name(api: ApiServer, argument: str) -> None:
    text = refusal(api, changed("default", {"engine.args": ["--max-model-len=4096", argument]}))
    assert f"spec.engine.args: {argument} is set by the operator" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a" * 41, "at most 40 characters"),
        ("has.dot", "must start with a letter"),
        ("1toy", "must start with a letter"),
    ],
)
def test_names_that_do_not_fit_a_service_are_refused(api: ApiServer, name: str, words: str) -> None:
    assert words in refusal(api, changed("default", {}, name=name))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.revision": None},
        {"model": {"uri": "hf://org/repo", "revision": "main", "secretRef": {"name": "a", "key": "b"}}},
        {"model.uri": "pvc://claim"},
        {"resources.limits": {"nvidia.com/gpu": "3", "memory": "64Gi"}},
        {"resources.limits": {"nvidia.com/gpu": 3}, "resources.requests": {"cpu": 1}},
        {"engine.accelerator": "cpu", "resources.limits": {"cpu": "2", "memory": "8Gi"}},
        {"engine.args": ["--max-model-len", "4096", "--model-impl=vllm", "--port-range=1"]},
        {"structuredOutput": {"backend": "auto", "disableAnyWhitespace": False}},
        {"structuredOutput": {"streaming": "Buffer", "repair": True}},
        {"replicas": 0},
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
    ],
)
def test_possible_resources_are_accepted(api: ApiServer, changes: Change) -> None:
    api.kubectl("create", "--dry-run=server", "-f", "-", stdin=as_yaml(changed("default", changes)))


def test_defaults_are_filled_in_by_the_server(api: ApiServer, namespace: str) -> None:
    api.kubectl("create", "-f", "-", stdin=as_yaml(changed(namespace, {})))
    body = api.kubectl_json("get", "sllm", "toy", "-n", namespace)
    assert isinstance(body, dict)
    spec = body["spec"]
    assert spec["warmup"] == {
        "policy": "Required",
        "burst": {"requests": 24, "concurrency": 24},
        "timeoutSeconds": 20,
        "maxRetries": 3,
        "retryBackoffSeconds": 1,
    }
    assert spec["engine"]["patches"] == "Required"
    assert spec["structuredOutput"]["streaming"] == "Trailing"
    assert spec["structuredOutput"]["repair"] is False
    assert spec["rolloutStrategy"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_explain_shows_what_a_field_means(api: ApiServer) -> None:
    text = " ".join(api.kubectl("explain", "sllm.spec.warmup.burst.concurrency").split())
    assert "Default: 24" in text
    assert "must be above spec.parallelism.pipeline" in text
    assert "Default: none" in " ".join(api.kubectl("explain", "sllm.spec.engine.args").split())


def test_names_and_categories(api: ApiServer, namespace: str) -> None:
    api.kubectl("create", "-f", "-", stdin=as_yaml(changed(namespace, {})))
    for name in ("sllm", "structuredllm", "structuredllms", "structuredllms.structuredllm.io"):
        assert "toy" in api.kubectl("get", name, "-n", namespace)
    assert "toy" in api.kubectl("get", "structuredllm", "-n", namespace, "-o", "name")


async def test_status_is_a_subresource_and_generation_moves_with_the_spec_only(
    api: ApiServer, client: KubeClient, namespace: str
) -> None:
    api.kubectl("create", "-f", "-", stdin=as_yaml(changed(namespace, {})))
    body = {**changed(namespace, {}), "status": {"replicas": 7}}
    api.kubectl("replace", "-f", "-", stdin=as_yaml(body))
    stored = await client.get(STRUCTURED_LLM, namespace, "toy")
    assert stored is not None
    assert "status" not in stored
    assert stored["metadata"]["generation"] == 1
    api.kubectl("patch", "sllm", "toy", "-n", namespace, "--type=merge", "-p", '{"spec":{"replicas":2}}')
    stored = await client.get(STRUCTURED_LLM, namespace, "toy")
    assert stored is not None
    assert stored["metadata"]["generation"] == 2


def test_applying_the_crd_again_changes_nothing(api: ApiServer) -> None:
    assert "unchanged" in api.kubectl("apply", "-f", str(repo_root() / CRD_PATH))
