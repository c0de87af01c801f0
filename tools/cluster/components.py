"""Command lines of the control plane's programs: pure functions from places and ports to argv.

Owns the flags. Starting and waiting is `processes`; the node's programs are in `node`. Imports nothing of
this package.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ControlPlane:
    """Where one control plane keeps its files and listens.

    Attributes:
        state: Folder with `pki/`, `etcd/` and kubeconfig files.
        bind_address: Address that the API server listens on.
        advertise_address: Address that pods reach it by; None for a control plane without nodes.
        api_port: Port of the API server.
        etcd_port: Client port of etcd.
        etcd_peer_port: Peer port of etcd.
        controller_manager_port: Health port.
        scheduler_port: Health port.
        service_cidr: Service addresses.
        cluster_cidr: Pod addresses.
    """

    state: Path
    bind_address: str
    advertise_address: str | None
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int
    scheduler_port: int
    service_cidr: str
    cluster_cidr: str

    @property
    def pki(self) -> Path:
        """Folder of the certificates."""
        return self.state / "pki"

    @property
    def server(self) -> str:
        """URL of the API server from this host."""
        return f"https://127.0.0.1:{self.api_port}"

    def kubeconfig(self, user: str) -> Path:
        """Path of a component's kubeconfig."""
        return self.state / f"{user}.kubeconfig"


def etcd_argv(etcd: Path, plane: ControlPlane) -> list[str]:
    """Return etcd's command line; without fsync, since nothing here has to survive a power cut."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (plane.etcd_port, plane.etcd_peer_port))
    return [
        str(etcd),
        f"--data-dir={plane.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--auto-compaction-retention=10m",
        "--quota-backend-bytes=4294967296",
    ]


def apiserver_argv(program: Path, plane: ControlPlane, *, service_accounts: bool) -> list[str]:
    """Return the API server's command line.

    Args:
        program: kube-apiserver.
        plane: Places and ports.
        service_accounts: False where no controller makes the `default` accounts, or no pod could be created.
    """
    pki = plane.pki
    argv = [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{plane.etcd_port}",
        f"--secure-port={plane.api_port}",
        f"--bind-address={plane.bind_address}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={plane.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        # The node's name need not resolve anywhere, so dial its address.
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    ]
    if plane.advertise_address is None:
        argv += [f"--advertise-address={plane.bind_address}", "--endpoint-reconciler-type=none"]
    else:
        argv.append(f"--advertise-address={plane.advertise_address}")
    if not service_accounts:
        argv.append("--disable-admission-plugins=ServiceAccount")
    return argv


def controller_manager_argv(program: Path, plane: ControlPlane) -> list[str]:
    """Return the controller manager's command line."""
    pki = plane.pki
    return [
        str(program),
        f"--kubeconfig={plane.kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={plane.controller_manager_port}",
        f"--cert-dir={plane.state / 'controller-manager'}",
        f"--cluster-cidr={plane.cluster_cidr}",
        # The CNI plugin hands out the addresses: one node, one range.
        "--allocate-node-cidrs=false",
    ]


def scheduler_argv(program: Path, plane: ControlPlane) -> list[str]:
    """Return the scheduler's command line."""
    return [
        str(program),
        f"--kubeconfig={plane.kubeconfig('scheduler')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={plane.scheduler_port}",
        f"--cert-dir={plane.state / 'scheduler'}",
    ]
