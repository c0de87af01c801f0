"""Certificates and kubeconfig files of one control plane, made with openssl.

Owns the names in the certificates. Imports processes only.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.processes import run

DAYS = 3650


@dataclass(frozen=True)
class Leaf:
    """One certificate signed by our authority.

    Attributes:
        name: File name without suffix.
        subject: Subject as openssl writes it, e.g. `/O=system:masters/CN=admin`.
        alternative_names: Subject alternative names, e.g. `DNS:localhost`, `IP:127.0.0.1`.
    """

    name: str
    subject: str
    alternative_names: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of what the certificate says, kept beside it to see when it must be made again."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def server_leaf(addresses: Sequence[str]) -> Leaf:
    """Return the API server's certificate for the given IP addresses and its in-cluster names."""
    names = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    return Leaf(
        "apiserver",
        "/CN=kube-apiserver",
        (*(f"DNS:{name}" for name in (*names, "localhost")), *(f"IP:{address}" for address in addresses)),
    )


def client_leaves() -> list[Leaf]:
    """Return the client certificates of the control plane; `admin` is the user's."""
    return [
        Leaf("admin", "/O=system:masters/CN=structuredllm-admin"),
        Leaf("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        Leaf("controller-manager", "/CN=system:kube-controller-manager"),
        Leaf("scheduler", "/CN=system:kube-scheduler"),
    ]


def node_leaves(node_name: str, node_ip: str) -> list[Leaf]:
    """Return the certificates of one node: kubelet (client and server in one) and kube-proxy."""
    return [
        Leaf(
            "kubelet",
            f"/O=system:nodes/CN=system:node:{node_name}",
            (f"DNS:{node_name}", f"IP:{node_ip}", "IP:127.0.0.1"),
        ),
        Leaf("kube-proxy", "/CN=system:kube-proxy"),
    ]


def authority_argv(folder: Path) -> list[str]:
    """Return the command that makes the certificate authority."""
    return [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", str(DAYS), "-subj", "/CN=structuredllm-cluster-ca"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
        *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")),
    ]


def request_argv(folder: Path, leaf: Leaf) -> list[str]:
    """Return the command that makes a key and a signing request."""
    return [
        *("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", leaf.subject, "-keyout", str(folder / f"{leaf.name}.key")),
        *("-out", str(folder / f"{leaf.name}.csr")),
    ]


def extensions(leaf: Leaf) -> str:
    """Return the extension file for signing a leaf."""
    lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    if leaf.alternative_names:
        lines.append("subjectAltName=" + ",".join(leaf.alternative_names))
    return "\n".join(lines) + "\n"


def sign_argv(folder: Path, leaf: Leaf) -> list[str]:
    """Return the command that signs a request with our authority."""
    base = folder / leaf.name
    return [
        *("openssl", "x509", "-req", "-in", f"{base}.csr", "-out", f"{base}.crt", "-days", str(DAYS)),
        *("-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"),
        *("-extfile", f"{base}.ext"),
    ]


def ensure_pki(folder: Path, leaves: Sequence[Leaf]) -> str:
    """Make what is missing or says something else than asked for.

    Returns:
        A digest of the authority and all leaves; it changes when a component has to read new files.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def openssl(argv: list[str], what: str) -> None:
        run(argv, what=what, timeout_seconds=30)

    if not (folder / "ca.done").exists():
        openssl(authority_argv(folder), "make the certificate authority")
        openssl(
            [
                "openssl",
                "ecparam",
                "-name",
                "prime256v1",
                "-genkey",
                "-noout",
                "-out",
                str(folder / "sa.key"),
            ],
            "make the service account key",
        )
        openssl(
            ["openssl", "ec", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub")],
            "write the service account key",
        )
        for stale in folder.glob("*.made"):
            stale.unlink()
        (folder / "ca.done").touch()
    for leaf in leaves:
        # Written last, so an interrupted run makes the certificate again.
        mark = folder / f"{leaf.name}.made"
        if mark.exists() and mark.read_text() == leaf.digest:
            continue
        openssl(request_argv(folder, leaf), f"make the key of {leaf.name}")
        (folder / f"{leaf.name}.ext").write_text(extensions(leaf))
        openssl(sign_argv(folder, leaf), f"sign the certificate of {leaf.name}")
        mark.write_text(leaf.digest)
    joined = (folder / "ca.crt").read_text() + "".join(leaf.digest for leaf in leaves)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def kubeconfig(folder: Path, user: str, server: str, context: str = "structuredllm") -> str:
    """Return a self-contained kubeconfig (JSON, which is YAML) for one certificate of `folder`."""

    def data(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": context, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": data(f"{user}.crt"),
                        "client-key-data": data(f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
            "current-context": context,
        },
        indent=1,
    )


def write_kubeconfig(path: Path, folder: Path, user: str, server: str) -> Path:
    """Write a kubeconfig that only its owner can read; untouched when nothing changed."""
    text = kubeconfig(folder, user, server)
    if not path.exists() or path.read_text() != text:
        path.touch(mode=0o600)
        path.write_text(text)
    return path
