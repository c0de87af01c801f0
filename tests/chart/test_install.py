"""The chart against a real API server: it accepts every object, upgrades, and keeps the CRD on uninstall.

No kubelet runs here, so nothing is waited for; pods are the end-to-end tests' matter.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.support import CHART, Render, pod_specs, run
from tools.cluster.apiserver import ApiServer

CRD = "structuredllms.structuredllm.io"
Helm = Callable[..., str]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer.start(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
def on_cluster(helm: Path, api: ApiServer) -> Helm:
    """Return a function that runs helm against the API server and returns what it prints."""

    def call(*arguments: str | Path) -> str:
        done = run(helm, *arguments, "--kubeconfig", api.kubeconfig)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def names(api: ApiServer, kind: str, *arguments: str) -> set[str]:
    items: Any = api.kubectl_json("get", kind, "-l", "app.kubernetes.io/managed-by=Helm", *arguments)
    return {item["metadata"]["name"] for item in items["items"]}


def can(api: ApiServer, account: str, verb: str, resource: str, namespace: str) -> bool:
    """Ask the API server itself what a service account may do."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"namespace": namespace, "verb": verb, **_resource(resource)},
        },
    }
    answer = json.loads(api.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


def _resource(text: str) -> dict[str, str]:
    path, _, group = text.partition(".")
    resource, _, sub = path.partition("/")
    return {"resource": resource, "subresource": sub, "group": group}


def test_installs_upgrades_and_keeps_the_crd_and_resources(api: ApiServer, on_cluster: Helm) -> None:
    system = ("--namespace", "sys")
    notes = on_cluster("upgrade", "--install", "structuredllm", CHART, *system, "--create-namespace")
    assert "kubectl wait" in notes
    assert names(api, "deployments", "-n", "sys") == {"structuredllm-operator", "structuredllm-gateway"}
    assert names(api, "pdb", "-n", "sys") == {"structuredllm-gateway"}

    for resource in ("structuredllms.structuredllm.io", "pods"):
        assert can(api, "sys:structuredllm-operator", "watch", resource, "anywhere")
        assert can(api, "sys:structuredllm-gateway", "watch", resource, "anywhere")
    assert can(api, "sys:structuredllm-operator", "patch", "pods/status", "anywhere")
    assert can(api, "sys:structuredllm-operator", "patch", "deployments.apps", "anywhere")
    for account in ("sys:structuredllm-operator", "sys:structuredllm-gateway"):
        assert not can(api, account, "get", "secrets", "sys")
        assert not can(api, account, "delete", "structuredllms.structuredllm.io", "sys")
    assert not can(api, "sys:structuredllm-gateway", "patch", "pods/status", "sys")

    # A field that somebody took out of the CRD comes back: the chart upgrades it.
    api.kubectl("patch", "crd", CRD, "--type=json", '-p=[{"op":"remove","path":"/spec/names/shortNames"}]')
    on_cluster("upgrade", "structuredllm", CHART, *system, "--set", "gateway.replicas=1")
    crd: Any = api.kubectl_json("get", "crd", CRD)
    assert crd["spec"]["names"]["shortNames"] == ["sllm"]
    assert names(api, "pdb", "-n", "sys") == set()

    on_cluster("uninstall", "structuredllm", *system)
    assert names(api, "crd") == {CRD}
    assert names(api, "deployments", "-n", "sys") == set()
    assert names(api, "clusterroles") == set()

    # The kept CRD does not stand in the way of the next installation.
    on_cluster("install", "structuredllm", CHART, *system)
    on_cluster("uninstall", "structuredllm", *system)


def test_namespaced_mode_gives_rights_in_the_listed_namespace_only(api: ApiServer, on_cluster: Helm) -> None:
    for namespace in ("team-a", "team-b"):
        api.kubectl("create", "namespace", namespace)
    on_cluster(
        *("install", "scoped", CHART, "--namespace", "scoped", "--create-namespace"),
        *(
            "--values",
            CHART / "ci" / "namespaced-values.yaml",
            "--set",
            "monitoring.podMonitor.enabled=false",
        ),
    )
    operator, gateway = "scoped:scoped-structuredllm-operator", "scoped:scoped-structuredllm-gateway"
    for account in (operator, gateway):
        assert can(api, account, "watch", "structuredllms.structuredllm.io", "team-a")
        assert not can(api, account, "watch", "structuredllms.structuredllm.io", "team-b")
        assert not can(api, account, "list", "pods", "")
    assert can(api, operator, "patch", "deployments.apps", "team-a")
    on_cluster("uninstall", "scoped", "--namespace", "scoped")


def test_pods_are_admitted_where_the_restricted_standard_is_enforced(api: ApiServer, render: Render) -> None:
    api.kubectl("create", "namespace", "strict")
    api.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    api.kubectl("create", "serviceaccount", "default", "-n", "strict")
    for name, spec in pod_specs(render()).items():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name.split("/")[1], "namespace": "strict"},
            "spec": {key: value for key, value in spec.items() if key != "serviceAccountName"},
        }
        api.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_every_value_set_is_accepted_by_the_api_server(api: ApiServer, helm: Path) -> None:
    """Server-side dry run with strict field validation: no misplaced or misspelt field in any template."""
    api.kubectl("create", "namespace", "dry")
    for values in sorted((CHART / "ci").glob("*-values.yaml")):
        rendered = run(
            helm,
            *("template", "structuredllm", CHART, "--namespace", "dry", "--values", values),
            *("--kube-version", "1.36.0", "--set", "monitoring.podMonitor.enabled=false"),
            *("--set", "monitoring.prometheusRule.enabled=false"),
        )
        assert rendered.returncode == 0, rendered.stderr
        for namespace in ("team-a", "team-b"):
            api.kubectl(
                "apply",
                "-f",
                "-",
                stdin=f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}",
            )
        api.kubectl(
            *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
            stdin=rendered.stdout,
        )
