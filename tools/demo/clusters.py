"""Which cluster the demo runs on, and how an image reaches it.

Owns the choice: the user's own (`DEMO_CLUSTER=current` with KUBECONFIG), kind where a Docker engine answers,
else the embedded one. Nothing here knows the product.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tools.demo.console import Console, DemoError
from tools.images import BuiltImage
from tools.paths import cache_dir, repo_root

KIND_NAME = "structuredllm"
Kind = Literal["current", "kind", "embedded"]


class Cluster(Protocol):
    """One cluster that the demo can use."""

    @property
    def name(self) -> Kind:
        """Which kind of cluster it is."""
        ...

    def up(self, console: Console) -> Path:
        """Bring it up if need be; return a kubeconfig file."""
        ...

    def load(self, image: BuiltImage, console: Console) -> str:
        """Make the image available to the nodes; return the reference that pods must use."""
        ...

    def down(self) -> None:
        """Remove what `up` made."""
        ...


def _run(command: tuple[str, ...], *, what: str, quiet: bool = False) -> None:
    done = subprocess.run(command, cwd=repo_root(), check=False, capture_output=quiet, text=True)
    if done.returncode != 0:
        detail = f": {done.stderr.strip()[-500:]}" if quiet else ""
        raise DemoError(f"{what} failed (exit {done.returncode}){detail}")


@dataclass(frozen=True)
class EmbeddedCluster:
    """The cluster of tools/cluster: a real Kubernetes on this machine, without a container engine."""

    name: Kind = "embedded"

    def up(self, console: Console) -> Path:
        """Start or repair it (idempotent); its own output shows the progress."""
        _run((sys.executable, "-m", "tools.cluster", "up"), what="starting the embedded cluster")
        done = subprocess.run(
            (sys.executable, "-m", "tools.cluster", "kubeconfig"),
            cwd=repo_root(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        return Path(done.stdout.strip())

    def load(self, image: BuiltImage, console: Console) -> str:
        """Import the archive into the node's image store; skipped there when the digest is present."""
        _run(
            (sys.executable, "-m", "tools.cluster", "load-image", str(image.archive)),
            what=f"loading {image.reference}",
        )
        return image.reference

    def down(self) -> None:
        """Stop every component and remove mounts, bridge, tables and state."""
        _run((sys.executable, "-m", "tools.cluster", "down"), what="removing the embedded cluster")


@dataclass(frozen=True)
class KindCluster:
    """A kind cluster of our own name."""

    name: Kind = "kind"

    def up(self, console: Console) -> Path:
        """Create it when it is not there."""
        kubeconfig = cache_dir("kind") / "kubeconfig"
        names = subprocess.run(
            ("kind", "get", "clusters"), check=True, capture_output=True, text=True
        ).stdout.split()
        if KIND_NAME not in names:
            _run(
                ("kind", "create", "cluster", "--name", KIND_NAME, "--wait", "180s"),
                what="kind create cluster",
            )
        _run(
            ("kind", "export", "kubeconfig", "--name", KIND_NAME, "--kubeconfig", str(kubeconfig)),
            what="kind export kubeconfig", quiet=True,
        )  # fmt: skip
        return kubeconfig

    def load(self, image: BuiltImage, console: Console) -> str:
        """Load the archive into kind's node."""
        _run(
            ("kind", "load", "image-archive", str(image.archive), "--name", KIND_NAME),
            what=f"kind load {image.reference}",
        )
        return image.reference

    def down(self) -> None:
        """Delete the kind cluster."""
        _run(("kind", "delete", "cluster", "--name", KIND_NAME), what="kind delete cluster")


@dataclass(frozen=True)
class CurrentCluster:
    """The user's own cluster; images go through a registry that its nodes can pull from.

    Attributes:
        kubeconfig: the user's file.
        registry: prefix like `registry.example/team`, from DEMO_REGISTRY; None when not given.
    """

    kubeconfig: Path
    registry: str | None
    name: Kind = "current"

    def up(self, console: Console) -> Path:
        """Only check that it is configured."""
        if not self.kubeconfig.is_file():
            raise DemoError(
                f"DEMO_CLUSTER=current needs KUBECONFIG to name a file; {self.kubeconfig} is none"
            )
        if self.registry is None:
            raise DemoError(
                "DEMO_CLUSTER=current needs DEMO_REGISTRY: a prefix (registry.example/team) this machine "
                "may push to and the cluster's nodes may pull from"
            )
        return self.kubeconfig

    def load(self, image: BuiltImage, console: Console) -> str:
        """Push the image; return its name in the registry."""
        target = f"{self.registry}/{image.reference.rsplit('/', 1)[-1]}"
        console.info(f"pushing {target}")
        tool = shutil.which("skopeo")
        if tool:
            command = (tool, "copy", f"oci-archive:{image.archive}", f"docker://{target}")
        else:
            command = ("buildah", "push", image.reference, f"docker://{target}")
        _run(command, what=f"pushing {target}")
        return target

    def down(self) -> None:
        """The cluster is the user's: nothing to remove here."""


def docker_runs() -> bool:
    """Return whether a Docker engine answers."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(("docker", "info"), check=False, capture_output=True).returncode == 0


def choose_cluster(environment: Mapping[str, str] = os.environ, *, docker: bool | None = None) -> Cluster:
    """Return the cluster to use.

    Raises:
        DemoError: DEMO_CLUSTER is not one of current, kind, embedded, or names kind where it cannot run.
    """
    wish = environment.get("DEMO_CLUSTER", "")
    if wish not in ("", "current", "kind", "embedded"):
        raise DemoError(f"DEMO_CLUSTER={wish!r} is unknown; use current, kind or embedded")
    if wish == "current":
        kubeconfig = Path(environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        return CurrentCluster(kubeconfig=kubeconfig, registry=environment.get("DEMO_REGISTRY"))
    if wish == "embedded":
        return EmbeddedCluster()
    kind_possible = shutil.which("kind") is not None and (docker_runs() if docker is None else docker)
    if wish == "kind" and not kind_possible:
        raise DemoError(
            "DEMO_CLUSTER=kind needs the kind command and a running Docker engine; neither is optional"
        )
    return KindCluster() if kind_possible else EmbeddedCluster()
