"""The rights listed in operator/README.md are enough, and each of them is needed by the text's own word."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import ApiClient

from structuredllm_operator.kube.client import PDB, KubeClient
from tests.contract.operator.conftest import as_yaml, eventually, resource, wait_condition
from tests.contract.operator.kubelet import FakeKubelet, Script
from tests.fakes.fake_engine import FakeEngine
from tools.cluster.apiserver import ApiServer
from tools.paths import repo_root

pytestmark = pytest.mark.timeout(180)


def documented_rules() -> list[dict[str, list[str]]]:
    """Return the rules of the table under "RBAC" in the README."""
    text = (repo_root() / "operator" / "README.md").read_text(encoding="utf-8").partition("## RBAC")[2]
    rules = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("API group", "---"):
            rules.append(
                {
                    "apiGroups": [cells[0].strip('"')],
                    "resources": [part.strip() for part in cells[1].split(",")],
                    "verbs": [part.strip() for part in cells[2].partition("(")[0].split(",")],
                }
            )
    return rules


def restricted_kubeconfig(api: ApiServer, namespace: str, folder: Path) -> Path:
    """Make an account with exactly the documented rights in the namespace; return its kubeconfig."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "operator", "namespace": namespace},
        "rules": documented_rules(),
    }
    api.kubectl("create", "-f", "-", stdin=as_yaml(role))
    api.kubectl("create", "serviceaccount", "operator", "-n", namespace)
    account = f"--serviceaccount={namespace}:operator"
    api.kubectl("create", "rolebinding", "operator", "-n", namespace, "--role=operator", account)
    token = api.kubectl("create", "token", "operator", "-n", namespace).strip()
    config: dict[str, Any] = yaml.safe_load(api.kubeconfig.read_text())
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / "restricted.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_the_documented_rights_are_enough_for_the_whole_life_of_a_resource(
    api: ApiServer,
    kube: ApiClient,
    client: KubeClient,
    namespace: str,
    pod_ip: str,
    operator: Callable[..., contextlib.AbstractAsyncContextManager[None]],
    tmp_path: Path,
) -> None:
    """Ready, an event, a budget made and deleted, and garbage collection allowed to block on children."""
    rules = documented_rules()
    assert len(rules) == 12
    assert "*" not in str(rules)
    kubeconfig = restricted_kubeconfig(api, namespace, tmp_path)
    kubelet = FakeKubelet(kube, namespace, Script(ip=pod_ip))
    fake = FakeEngine(host=pod_ip, port=8000, telemetry_port=9464)
    async with fake, kubelet.running(), operator(kubeconfig):
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace, replicas=2)))
        await wait_condition(client, namespace, "Ready", "True", "AllServing")

        async def event() -> bool:
            return "AllServing" in api.kubectl("get", "events", "-n", namespace)

        await eventually("an event", event)
        assert await client.get(PDB, namespace, "toy-engine") is not None
        api.kubectl("scale", "sllm", "toy", "-n", namespace, "--replicas=1")

        async def no_budget() -> bool:
            return await client.get(PDB, namespace, "toy-engine") is None

        await eventually("budget deleted", no_budget)
