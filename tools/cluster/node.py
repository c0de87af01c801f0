"""The node's programs: configuration files and command lines of containerd, kubelet, kube-proxy and CNI.

Owns what differs between hosts: cgroup v1 or v2, with or without CAP_SYS_RESOURCE. All functions are pure.
Sources: containerd's CRI configuration (version 3), kubelet.config.k8s.io/v1beta1,
kubeproxy.config.k8s.io/v1alpha1, the ptp and host-local CNI plugins.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster.settings import Settings

NETWORK_NAME = "structuredllm"
NFT_TABLE = "structuredllm-cluster"
# The name is fixed in kube-proxy, so a host can have one nftables kube-proxy only.
KUBE_PROXY_TABLE = "ip kube-proxy"


@dataclass(frozen=True)
class HostFacts:
    """What the node's configuration depends on.

    Attributes:
        cgroup_version: 1 (also hybrid) or 2.
        may_lower_oom_score: Whether we have CAP_SYS_RESOURCE.
        resolv_conf: Name servers for pods that use the node's; None when the host has none.
        cni_bin_dir: Folder of the CNI plugins.
        runc: The runtime.
    """

    cgroup_version: int
    may_lower_oom_score: bool
    resolv_conf: Path | None
    cni_bin_dir: Path
    runc: Path


def _quoted(value: object) -> str:
    # A JSON string is a TOML basic string.
    return json.dumps(str(value))


def containerd_config(settings: Settings, facts: HostFacts, pause_image: str) -> str:
    """Return containerd's configuration file."""
    places = settings.places
    state = places.state
    # Without CAP_SYS_RESOURCE the kernel refuses a lower oom_score_adj, and every sandbox would fail.
    restrict = "false" if facts.may_lower_oom_score else "true"
    cri = "plugins.'io.containerd.cri.v1"
    runc = f"{cri}.runtime'.containerd.runtimes.runc"
    return f"""version = 3
root = {_quoted(places.containerd_root)}
state = {_quoted(places.run / "containerd")}

[grpc]
  address = {_quoted(places.socket)}

[ttrpc]
  address = {_quoted(f"{places.socket}.ttrpc")}

[debug]
  address = {_quoted(places.run / "debug.sock")}

[{cri}.images']
  snapshotter = "overlayfs"

[{cri}.images'.pinned_images]
  sandbox = {_quoted(pause_image)}

[{cri}.runtime']
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true

[{cri}.runtime'.cni]
  bin_dirs = [{_quoted(facts.cni_bin_dir)}]
  conf_dir = {_quoted(state / "cni")}

[{runc}]
  runtime_type = "io.containerd.runc.v2"

[{runc}.options]
  SystemdCgroup = false
  BinaryName = {_quoted(facts.runc)}
  Root = {_quoted(places.run / "runc")}

[plugins.'io.containerd.nri.v1.nri']
  disable = true

[plugins.'io.containerd.internal.v1.opt']
  path = {_quoted(state / "containerd-opt")}
"""


def cni_config(settings: Settings) -> dict[str, Any]:
    """Return the CNI configuration: one veth pair and one host route per pod.

    With ptp instead of a bridge every packet between pods crosses the host's routing, so replies through a
    service address are translated back without the br_netfilter module, and no bridge can be left behind.
    """
    return {
        "cniVersion": "1.0.0",
        "name": NETWORK_NAME,
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(settings.places.state / "cni-leases"),
                    "ranges": [[{"subnet": settings.cluster_cidr}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def masquerade_rules(settings: Settings) -> str:
    """Return the nft script that lets pods reach beyond the host; running it again gives the same table."""
    cidr = settings.cluster_cidr
    return f"""table ip {NFT_TABLE} {{ }}
flush table ip {NFT_TABLE}
table ip {NFT_TABLE} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {cidr} ip daddr != {cidr} masquerade
  }}
}}
"""


def kubelet_config(settings: Settings, facts: HostFacts) -> dict[str, Any]:
    """Return kubelet's configuration."""
    places = settings.places
    pki = settings.plane.pki
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "port": settings.port("kubelet"),
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": settings.port("kubelet-healthz"),
        "cgroupDriver": "cgroupfs",
        "clusterDomain": "cluster.local",
        "clusterDNS": [settings.dns_address],
        "containerRuntimeEndpoint": f"unix://{places.socket}",
        "resolvConf": str(facts.resolv_conf) if facts.resolv_conf else "",
        "podLogsDir": str(places.logs / "pods"),
        "volumePluginDir": str(places.state / "volume-plugins"),
        "failSwapOn": False,
        # Images come from archives, not from a registry: never collect them, and never evict for disk
        # space until the disk is all but full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "enforceNodeAllocatable": [],
        # kube-proxy uses nft; these chains would only be left behind.
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": -999 if facts.may_lower_oom_score else 0,
    }
    if facts.cgroup_version == 1:
        # kubelet 1.35 and newer refuse cgroup v1 unless told otherwise.
        config["failCgroupV1"] = False
    return config


def kubelet_argv(program: Path, settings: Settings) -> list[str]:
    """Return kubelet's command line."""
    state = settings.places.state
    return [
        str(program),
        f"--config={state / 'kubelet.json'}",
        f"--kubeconfig={settings.plane.kubeconfig('kubelet')}",
        f"--root-dir={state / 'kubelet'}",
        f"--cert-dir={state / 'kubelet-certs'}",
        f"--hostname-override={settings.node_name}",
        f"--node-ip={settings.node_ip}",
    ]


def kube_proxy_config(settings: Settings, facts: HostFacts) -> dict[str, Any]:
    """Return kube-proxy's configuration: nftables mode, and the host's conntrack limits left alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": "0.0.0.0",
        "clusterCIDR": settings.cluster_cidr,
        "hostnameOverride": settings.node_name,
        "clientConnection": {"kubeconfig": str(settings.plane.kubeconfig("kube-proxy"))},
        "healthzBindAddress": f"127.0.0.1:{settings.port('proxy-healthz')}",
        "metricsBindAddress": f"127.0.0.1:{settings.port('proxy-metrics')}",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": -999 if facts.may_lower_oom_score else 0,
    }


def kube_proxy_argv(program: Path, settings: Settings) -> list[str]:
    """Return kube-proxy's command line."""
    return [str(program), f"--config={settings.places.state / 'kube-proxy.json'}"]


def containerd_argv(program: Path, settings: Settings) -> list[str]:
    """Return containerd's command line."""
    return [str(program), "--config", str(settings.places.state / "containerd.toml")]
