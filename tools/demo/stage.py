"""Sets the stage: cluster, images, chart. Every step is idempotent, so an interrupted run just runs again.

Owns what happens before the first resource is applied; the demo and the end-to-end tests share it.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import ensure_tool
from tools.demo.clusters import Cluster, choose_cluster
from tools.demo.console import Console, DemoError
from tools.demo.kubectl import Kubectl
from tools.demo.resources import NAMESPACE, RELEASE, SYSTEM_NAMESPACE
from tools.images import ImageName, ensure_image
from tools.paths import repo_root

GATEWAY_SERVICE = "structuredllm-gateway"
IMAGES: tuple[ImageName, ...] = ("operator", "gateway", "engine-cpu")


@dataclass(frozen=True)
class Stage:
    """A cluster with the chart installed.

    Attributes:
        cluster: which one.
        kubectl: bound to it.
        engine_image: reference that engine pods can use.
    """

    cluster: Cluster
    kubectl: Kubectl
    engine_image: str


def _image_values(key: str, reference: str) -> list[str]:
    """Return helm --set arguments that make component `key` run exactly `reference`."""
    name, tag = reference.rsplit(":", 1)
    registry, repository = name.split("/", 1)
    return [
        "--set", f"{key}.image.registry={registry}",
        "--set", f"{key}.image.repository={repository}",
        "--set-string", f"{key}.image.tag={tag}",
        "--set", f"{key}.image.pullPolicy=IfNotPresent",
    ]  # fmt: skip


def clear_interrupted_release(helm: Path, kubeconfig: Path) -> bool:
    """Remove a release that an interrupted helm left pending: it would refuse every later upgrade.

    The CRD and the resources stay (the chart keeps the CRD). Returns whether there was one.
    """
    where = ("--namespace", SYSTEM_NAMESPACE, "--kubeconfig", str(kubeconfig))
    asked = subprocess.run(
        (str(helm), "status", RELEASE, "--output", "json", *where),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        return False
    if not str(json.loads(asked.stdout)["info"]["status"]).startswith("pending-"):
        return False
    subprocess.run((str(helm), "uninstall", RELEASE, "--no-hooks", *where), capture_output=True, check=True)
    return True


def install_chart(kubectl: Kubectl, references: Mapping[str, str], console: Console) -> None:
    """Install or upgrade the chart and wait until operator and gateway run.

    Raises:
        DemoError: helm failed; the message has its words and the pods' states.
    """
    helm = ensure_tool("helm")
    if clear_interrupted_release(helm, kubectl.kubeconfig):
        console.info("removed a release that an interrupted run had left pending")
    command = (
        str(helm), "upgrade", "--install", RELEASE, "charts/structuredllm",
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "5m",
        "--kubeconfig", str(kubectl.kubeconfig), "--set", "gateway.replicas=1,gateway.auth.open=true",
        *_image_values("operator", references["operator"]), *_image_values("gateway", references["gateway"]),
    )  # fmt: skip
    console.info("helm " + " ".join(command[1:9]) + " ...")
    done = subprocess.run(command, cwd=repo_root(), capture_output=True, text=True, check=False)
    (console.log.parent / "helm.log").write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        pods = kubectl.run("get", "pods", "-n", SYSTEM_NAMESPACE, "-o", "wide", check=False)
        raise DemoError(f"helm: {done.stderr.strip()[-800:]}\n{pods}", console.log.parent / "helm.log")


def prepare(console: Console, *, namespace: str) -> Stage:
    """Bring up cluster, images and chart; create `namespace`; uses 4 steps of the console."""
    cluster = choose_cluster()
    console.step(f"cluster: {cluster.name}")
    kubeconfig = cluster.up(console)
    kubectl = Kubectl(ensure_tool("kubectl"), kubeconfig)

    console.step("images: operator, gateway, engine (built from this tree, cached by content)")
    built = {name: ensure_image(name) for name in IMAGES}

    console.step("images to the cluster's nodes")
    references: dict[str, str] = {name: cluster.load(image, console) for name, image in built.items()}

    console.step("helm chart")
    install_chart(kubectl, references, console)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return Stage(cluster, kubectl, references["engine-cpu"])


def remove(cluster: Cluster) -> None:
    """Remove the release and the demo's resources from a cluster that is the user's own."""
    kubectl = Kubectl(ensure_tool("kubectl"), cluster.up(_silent()))
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=300)
    subprocess.run(
        (str(ensure_tool("helm")), "uninstall", RELEASE, "-n", SYSTEM_NAMESPACE, "--ignore-not-found",
         "--kubeconfig", str(kubectl.kubeconfig)),
        check=False,
    )  # fmt: skip
    kubectl.run("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found", timeout=300)
    print(
        "the CRD stays, as it may hold resources of yours: kubectl delete crd structuredllms.structuredllm.io"
    )


def _silent() -> Console:
    return Console(repo_root() / "build" / "demo" / "down.log", 1)
