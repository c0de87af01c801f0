"""Bringing the cluster up and telling how it is: the order of the parts and the checks between them.

Owns the sequence. Every part is brought to the wanted state from any state, so the same code starts a
cluster, repairs one and confirms one. Taking it down is `teardown`.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tools.cluster import addons, components, node, processes
from tools.cluster.binaries import ensure_tool, module_source
from tools.cluster.checks import dns_check, http_check, tcp_check
from tools.cluster.errors import ClusterError, CommandError, SettingsError
from tools.cluster.host import CAP_SYS_RESOURCE, cgroup_version, has_capability, read_sysctls, resolv_conf
from tools.cluster.images import ctr, ensure_program_image, program_image_name
from tools.cluster.packages import cni_bin_dir, ensure_etcd, install, missing_packages, program
from tools.cluster.pki import client_leaves, ensure_pki, node_leaves, server_leaf, write_kubeconfig
from tools.cluster.progress import step
from tools.cluster.settings import Places, Settings
from tools.cluster.supervisor import Component, ensure_component
from tools.paths import cache_dir

# Folders outside our own that kubelet, containerd or the CNI plugins write to whatever they are told.
FOREIGN_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd")


def host_facts() -> node.HostFacts:
    """Return what the node's configuration depends on, from this host."""
    bin_dir = cni_bin_dir()
    if bin_dir is None:
        raise SettingsError("no CNI plugins on this host (Debian package containernetworking-plugins)")
    return node.HostFacts(
        cgroup_version=cgroup_version(Path("/proc/mounts").read_text()),
        may_lower_oom_score=has_capability(Path("/proc/self/status").read_text(), CAP_SYS_RESOURCE),
        resolv_conf=resolv_conf(),
        cni_bin_dir=bin_dir,
        runc=program("runc"),
    )


def prepare_programs(places: Places, *, lws: bool) -> None:
    """Install packages and build programs, each only when missing."""
    places.logs.mkdir(parents=True, exist_ok=True)
    install(missing_packages(), places.log("packages"))
    ensure_etcd(cache_dir("bin"), places.log("packages"))
    for tool in ("kubectl", "containerd", "coredns", "pause", *(("helm", "lws") if lws else ())):
        ensure_tool(tool)


def record_footprint(places: Places) -> None:
    """Write down once what the host looks like before the cluster changes it, for `down`."""
    if not places.footprint_file.exists():
        absent = [folder for folder in FOREIGN_FOLDERS if not Path(folder).exists()]
        temporary = places.footprint_file.with_suffix(".new")
        temporary.write_text(json.dumps({"absent": absent, "sysctls": read_sysctls()}))
        temporary.replace(places.footprint_file)


def kubectl(places: Places, *args: str, stdin: str | None = None, timeout_seconds: float = 60.0) -> str:
    """Run kubectl against the cluster as its admin and return its stdout."""
    argv = [str(ensure_tool("kubectl")), f"--kubeconfig={places.kubeconfig}", *args]
    return processes.run(argv, what=f"kubectl {args[0]}", timeout_seconds=timeout_seconds, stdin=stdin)


class Cluster:
    """The embedded cluster of one cache folder."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places = settings.places
        self._plane = settings.plane
        self._facts = host_facts()

    def up(self) -> bool:
        """Bring everything to the wanted state.

        Returns:
            Whether anything had to be started or changed.

        Raises:
            ClusterError: With the cause and the log.
        """
        inputs = self._write_files()
        changed = [ensure_component(component, self._places) for component in self._control_plane(inputs)]
        changed += [ensure_component(self._containerd(inputs), self._places)]
        self._ensure_images()
        processes.run(
            [str(program("nft")), "-f", "-"],
            what="set up masquerading",
            timeout_seconds=10,
            stdin=node.masquerade_rules(self._settings),
        )
        changed += [ensure_component(component, self._places) for component in self._node_programs(inputs)]
        self._wait_for_node()
        changed += [self._ensure_addons()]
        return any(changed)

    def _write_files(self) -> dict[str, str]:
        settings, places = self._settings, self._places
        addresses = ["127.0.0.1", settings.node_ip, settings.service_address(1)]
        leaves = [
            server_leaf(addresses),
            *client_leaves(),
            *node_leaves(settings.node_name, settings.node_ip),
        ]
        inputs = {"pki": ensure_pki(self._plane.pki, leaves)}
        for user in ("controller-manager", "scheduler", "kubelet", "kube-proxy"):
            write_kubeconfig(self._plane.kubeconfig(user), self._plane.pki, user, self._plane.server)
        write_kubeconfig(places.kubeconfig, self._plane.pki, "admin", self._plane.server)
        facts = self._facts
        files = {
            "containerd.toml": node.containerd_config(settings, facts, self._pause_image()),
            "kubelet.json": json.dumps(node.kubelet_config(settings, facts), indent=1),
            "kube-proxy.json": json.dumps(node.kube_proxy_config(settings, facts), indent=1),
            "cni/10-structuredllm.conflist": json.dumps(node.cni_config(settings), indent=1),
        }
        for name, text in files.items():
            path = places.state / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            inputs[name] = processes.argv_digest([text], inputs["pki"])
        for folder in (places.run, places.containerd_root, places.logs / "pods"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        return inputs

    def _pause_image(self) -> str:
        return program_image_name("pause", ensure_tool("pause"))

    def _control_plane(self, inputs: dict[str, str]) -> list[Component]:
        plane, pki = self._plane, inputs["pki"]
        etcd = ensure_etcd(cache_dir("bin"), self._places.log("packages"))
        admin = plane.pki / "admin"

        def local(port: int) -> Callable[[], str | None]:
            return lambda: http_check(f"https://127.0.0.1:{port}/healthz", verify=False)

        return [
            Component(
                "etcd",
                components.etcd_argv(etcd, plane),
                "",
                lambda: http_check(f"http://127.0.0.1:{plane.etcd_port}/health"),
            ),
            Component(
                "kube-apiserver",
                components.apiserver_argv(ensure_tool("kube-apiserver"), plane, service_accounts=True),
                pki,
                lambda: http_check(
                    f"{plane.server}/readyz", authority=plane.pki / "ca.crt", certificate=admin
                ),
            ),
            Component(
                "kube-controller-manager",
                components.controller_manager_argv(ensure_tool("kube-controller-manager"), plane),
                pki,
                local(plane.controller_manager_port),
            ),
            Component(
                "kube-scheduler",
                components.scheduler_argv(ensure_tool("kube-scheduler"), plane),
                pki,
                local(plane.scheduler_port),
            ),
        ]

    def _containerd(self, inputs: dict[str, str]) -> Component:
        return Component(
            "containerd",
            node.containerd_argv(ensure_tool("containerd"), self._settings),
            inputs["containerd.toml"],
            self._containerd_ready,
        )

    def _containerd_ready(self) -> str | None:
        try:
            ctr(self._places, "version", timeout_seconds=10)
        except ClusterError as error:
            return error.cause
        return None

    def _node_programs(self, inputs: dict[str, str]) -> list[Component]:
        settings = self._settings

        def local(port: str) -> Callable[[], str | None]:
            return lambda: http_check(f"http://127.0.0.1:{settings.port(port)}/healthz")

        return [
            Component(
                "kubelet",
                node.kubelet_argv(ensure_tool("kubelet"), settings),
                inputs["kubelet.json"],
                local("kubelet-healthz"),
            ),
            Component(
                "kube-proxy",
                node.kube_proxy_argv(ensure_tool("kube-proxy"), settings),
                inputs["kube-proxy.json"],
                local("proxy-healthz"),
            ),
        ]

    def _ensure_images(self) -> None:
        places = self._places
        ensure_program_image(places, "pause", ensure_tool("pause"), "/pause", addons.NON_ROOT)
        ensure_program_image(places, "coredns", ensure_tool("coredns"), "/coredns", "")
        if self._settings.lws:
            ensure_program_image(places, "lws", ensure_tool("lws"), "/manager", addons.NON_ROOT)

    def _wait_for_node(self) -> None:
        def ready() -> str | None:
            try:
                told = kubectl(
                    self._places,
                    *("get", "node", self._settings.node_name),
                    *("-o", 'jsonpath={.status.conditions[?(@.type=="Ready")]}'),
                )
            except CommandError as error:
                return error.cause
            condition = json.loads(told or "{}")
            if condition.get("status") == "True":
                return None
            return f"node {self._settings.node_name} is not Ready: {condition.get('message', 'no condition')}"

        if ready() is not None:
            with step("wait for the node to be Ready"):
                processes.wait_until(ready, what="node", timeout_seconds=120, log=self._places.log("kubelet"))

    def _ensure_addons(self) -> bool:
        settings, places = self._settings, self._places
        manifests = addons.coredns_manifests(
            program_image_name("coredns", ensure_tool("coredns")),
            settings.dns_address,
            forward=self._facts.resolv_conf is not None,
        )
        digest = processes.argv_digest(
            [json.dumps(manifests, sort_keys=True), str(ensure_tool("lws")) if settings.lws else ""]
        )
        mark = places.state / "addons"
        changed = not mark.exists() or mark.read_text() != digest
        if changed:
            with step("install CoreDNS"):
                listing = {"apiVersion": "v1", "kind": "List", "items": manifests}
                kubectl(
                    places,
                    *("apply", "--server-side", "--force-conflicts", "--field-manager=structuredllm-cluster"),
                    *("-f", "-"),
                    stdin=json.dumps(listing),
                )
            if settings.lws:
                self._install_lws()
        waited = self._wait_for_deployment("kube-system", "coredns")
        # A deployment's status is that of before a restart for a while, so also ask the thing itself.
        name, address = "kubernetes.default.svc.cluster.local", settings.service_address(1)
        waited |= self._wait("cluster DNS", lambda: dns_check(settings.dns_address, name, address))
        if settings.lws:
            waited |= self._wait_for_deployment(addons.LWS_NAMESPACE, addons.LWS_DEPLOYMENT)
            waited |= self._wait("the webhook of LeaderWorkerSet", self._lws_webhook)
        mark.write_text(digest)
        return changed or waited

    def _install_lws(self) -> None:
        places = self._places
        values = places.state / "lws-values.json"
        image = program_image_name("lws", ensure_tool("lws"))
        values.write_text(json.dumps(addons.lws_values(image), indent=1))
        with step("install LeaderWorkerSet"):
            chart = module_source("lws", addons.LWS_MODULE) / addons.LWS_CHART
            processes.run(
                addons.helm_argv(ensure_tool("helm"), places.kubeconfig, chart, values),
                what="helm upgrade --install lws",
                timeout_seconds=180,
                log=places.log("helm"),
            )

    def _wait_for_deployment(self, namespace: str, name: str) -> bool:
        def available() -> str | None:
            told = json.loads(kubectl(self._places, "get", "deployment", name, "-n", namespace, "-o", "json"))
            status = told.get("status", {})
            current = status.get("observedGeneration") == told["metadata"]["generation"]
            if current and status.get("availableReplicas", 0) >= 1 and not status.get("unavailableReplicas"):
                return None
            messages = [c["message"] for c in status.get("conditions", []) if c["status"] == "False"]
            return f"deployment {name} has no available replica: {'; '.join(messages) or 'no status yet'}"

        return self._wait(name, available)

    def _lws_webhook(self) -> str | None:
        where = ("get", "service", addons.LWS_WEBHOOK, "-n", addons.LWS_NAMESPACE)
        address = kubectl(self._places, *where, "-o", "jsonpath={.spec.clusterIP}")
        return tcp_check(address, 443)

    def _wait(self, what: str, check: Callable[[], str | None]) -> bool:
        if check() is None:
            return False
        with step(f"wait for {what}"):
            processes.wait_until(check, what=what, timeout_seconds=180, log=self._places.log("kubelet"))
        return True
