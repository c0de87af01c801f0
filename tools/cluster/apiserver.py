"""A control plane without nodes for contract tests: etcd, kube-apiserver, if asked the controller manager.

Owns one such control plane's life: free ports, its own folder, no root. Ends with the calling process.
"""

import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tools.cluster import processes
from tools.cluster.binaries import ensure_tool
from tools.cluster.checks import http_check
from tools.cluster.components import (
    ControlPlane,
    apiserver_argv,
    controller_manager_argv,
    etcd_argv,
    scheduler_argv,
)
from tools.cluster.errors import StartError
from tools.cluster.packages import ensure_etcd
from tools.cluster.pki import client_leaves, ensure_pki, server_leaf, write_kubeconfig
from tools.paths import cache_dir

ATTEMPTS = 3
START_TIMEOUT_SECONDS = 90.0


def free_ports(count: int) -> list[int]:
    """Return distinct ports on 127.0.0.1 that were free a moment ago."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ApiServer:
    """A running control plane without nodes; use it as a context manager or call `stop`."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self._plane = plane
        self.kubeconfig = kubeconfig
        self.server = plane.server
        self.logs = plane.state / "logs"

    @classmethod
    def start(cls, work_dir: Path, *, controllers: bool = False) -> "ApiServer":
        """Start etcd and kube-apiserver below `work_dir`; with `controllers` also the controller manager.

        Args:
            work_dir: Gets state, logs and the kubeconfig.
            controllers: Deployments, garbage collection, service accounts and the like work as in a cluster.

        Raises:
            ClusterError: With the cause and the log.
        """
        programs = (
            ensure_etcd(cache_dir("bin"), cache_dir("logs") / "packages.log"),
            ensure_tool("kube-apiserver"),
            ensure_tool("kube-controller-manager"),
        )
        for attempt in range(1, ATTEMPTS + 1):
            # Another program may take a port between our look and the start, so a failed start tries others.
            state = work_dir / (f"control-plane-{attempt}" if attempt > 1 else "control-plane")
            try:
                return cls._start_once(state, programs, controllers)
            except StartError as error:
                if attempt == ATTEMPTS or "address already in use" not in str(error):
                    raise
        raise AssertionError("unreachable")

    @classmethod
    def _start_once(cls, state: Path, programs: tuple[Path, Path, Path], controllers: bool) -> "ApiServer":
        api_port, etcd_port, etcd_peer_port, controller_manager_port = free_ports(4)
        state.mkdir(parents=True, exist_ok=True)
        plane = ControlPlane(
            state=state,
            bind_address="127.0.0.1",
            advertise_address=None,
            api_port=api_port,
            etcd_port=etcd_port,
            etcd_peer_port=etcd_peer_port,
            controller_manager_port=controller_manager_port,
            scheduler_port=0,
            service_cidr="10.96.0.0/16",
            cluster_cidr="10.244.0.0/24",
        )
        ensure_pki(plane.pki, [server_leaf(["127.0.0.1", "10.96.0.1"]), *client_leaves()])
        for user in ("admin", "controller-manager"):
            write_kubeconfig(plane.kubeconfig(user), plane.pki, user, plane.server)
        api = cls(plane, plane.kubeconfig("admin"))
        etcd, apiserver, manager = programs
        try:
            api._launch(
                "etcd",
                etcd_argv(etcd, plane),
                lambda: http_check(f"http://127.0.0.1:{plane.etcd_port}/health"),
            )
            api._launch(
                "kube-apiserver",
                apiserver_argv(apiserver, plane, service_accounts=controllers),
                api._api_ready,
            )
            if controllers:
                port = plane.controller_manager_port
                api._launch(
                    "kube-controller-manager",
                    controller_manager_argv(manager, plane),
                    lambda: http_check(f"https://127.0.0.1:{port}/healthz", verify=False),
                )
        except BaseException:
            api.stop()
            raise
        return api

    def _launch(self, name: str, argv: list[str], ready: Callable[[], str | None]) -> None:
        log, pidfile = self.logs / f"{name}.log", self._pidfile(name)
        processes.start(argv, log=log, pidfile=pidfile, die_with_parent=True)
        processes.wait_until(
            ready, what=name, timeout_seconds=START_TIMEOUT_SECONDS, pidfile=pidfile, log=log
        )

    def _api_ready(self) -> str | None:
        pki = self._plane.pki
        return http_check(f"{self.server}/readyz", authority=pki / "ca.crt", certificate=pki / "admin")

    def _pidfile(self, name: str) -> Path:
        return self._plane.state / "run" / f"{name}.pid"

    @contextmanager
    def scheduler(self) -> Iterator[None]:
        """Run kube-scheduler for a while. Nodes are the caller's business: Node objects are all it needs.

        Raises:
            ClusterError: With the cause and the log.
        """
        (port,) = free_ports(1)
        plane = dataclasses.replace(self._plane, scheduler_port=port)
        write_kubeconfig(plane.kubeconfig("scheduler"), plane.pki, "scheduler", plane.server)
        try:
            self._launch(
                "kube-scheduler",
                scheduler_argv(ensure_tool("kube-scheduler"), plane),
                lambda: http_check(f"https://127.0.0.1:{port}/healthz", verify=False),
            )
            yield
        finally:
            processes.stop(self._pidfile("kube-scheduler"), grace_seconds=5.0)

    def kubectl(self, *args: str, stdin: str | None = None, timeout_seconds: float = 60.0) -> str:
        """Run kubectl against this server and return its stdout.

        Raises:
            CommandError: kubectl failed; the cause is its last line.
        """
        argv = [str(ensure_tool("kubectl")), f"--kubeconfig={self.kubeconfig}", *args]
        return processes.run(argv, what="kubectl", timeout_seconds=timeout_seconds, stdin=stdin)

    def kubectl_json(self, *args: str) -> object:
        """Run kubectl with `-o json` and return the parsed answer."""
        return json.loads(self.kubectl(*args, "-o", "json"))

    def stop(self) -> None:
        """End all programs; safe to call twice."""
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            processes.stop(self._pidfile(name), grace_seconds=5.0)

    def __enter__(self) -> "ApiServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
