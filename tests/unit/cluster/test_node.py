"""Configuration of the node's programs for each kind of host."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from tools.cluster import node
from tools.cluster.settings import Settings

FACTS = node.HostFacts(2, True, Path("/etc/resolv.conf"), Path("/usr/lib/cni"), Path("/usr/sbin/runc"))


@pytest.fixture
def settings() -> Settings:
    return Settings(
        Path("/c a/cluster"), 20000, "10.250.0.0/24", "10.100.0.0/16", "n1", "192.0.2.7", lws=True
    )


@pytest.mark.parametrize("may_lower", [True, False])
def test_containerd_restricts_oom_scores_only_without_the_capability(
    settings: Settings, may_lower: bool
) -> None:
    facts = dataclasses.replace(FACTS, may_lower_oom_score=may_lower)
    config = tomllib.loads(node.containerd_config(settings, facts, "localhost/pause:1"))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is not may_lower
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == "localhost/pause:1"
    assert config["root"] == "/c a/cluster/containerd"
    # All that changes while it runs is outside the image store, so that `down` can remove it.
    assert config["state"].startswith(str(settings.places.run))
    options = runtime["containerd"]["runtimes"]["runc"]["options"]
    assert options["Root"].startswith(str(settings.places.run))


def test_kubelet_accepts_cgroup_v1_only_where_it_has_to(settings: Settings) -> None:
    assert "failCgroupV1" not in node.kubelet_config(settings, FACTS)
    on_v1 = node.kubelet_config(settings, dataclasses.replace(FACTS, cgroup_version=1))
    assert on_v1["failCgroupV1"] is False


def test_kubelet_keeps_images_and_pods_on_a_rather_full_disk(settings: Settings) -> None:
    config = node.kubelet_config(settings, FACTS)
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["evictionHard"]["nodefs.available"] == "1%"
    assert config["evictionHard"]["imagefs.available"] == "1%"


def test_kubelet_without_reachable_name_servers_gives_pods_none(settings: Settings) -> None:
    config = node.kubelet_config(settings, dataclasses.replace(FACTS, resolv_conf=None))
    assert config["resolvConf"] == ""
    assert config["clusterDNS"] == ["10.100.0.10"]


def test_every_port_comes_from_the_block_of_the_api_port(settings: Settings) -> None:
    kubelet, proxy = node.kubelet_config(settings, FACTS), node.kube_proxy_config(settings, FACTS)
    ports = [
        kubelet["port"],
        kubelet["healthzPort"],
        int(proxy["healthzBindAddress"].rpartition(":")[2]),
        int(proxy["metricsBindAddress"].rpartition(":")[2]),
        settings.plane.api_port,
        settings.plane.etcd_port,
        settings.plane.etcd_peer_port,
        settings.plane.controller_manager_port,
        settings.plane.scheduler_port,
    ]
    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 20010 for port in ports)


def test_kube_proxy_leaves_the_hosts_conntrack_limits_alone(settings: Settings) -> None:
    config = node.kube_proxy_config(settings, FACTS)
    assert config["mode"] == "nftables"
    assert (config["conntrack"]["maxPerCore"], config["conntrack"]["min"]) == (0, 0)


def test_pods_get_a_route_each_and_leases_that_go_with_the_state(settings: Settings) -> None:
    config = node.cni_config(settings)
    plugin = config["plugins"][0]
    assert plugin["type"] == "ptp"
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.250.0.0/24"}]]
    assert plugin["ipam"]["dataDir"].startswith(str(settings.places.state))
    json.dumps(config)


def test_masquerading_spares_traffic_between_pods(settings: Settings) -> None:
    rules = node.masquerade_rules(settings)
    assert f"flush table ip {node.NFT_TABLE}" in rules
    assert "ip saddr 10.250.0.0/24 ip daddr != 10.250.0.0/24 masquerade" in rules


def test_command_lines_name_files_of_this_cluster_only(settings: Settings) -> None:
    argv = node.kubelet_argv(Path("/bin/kubelet"), settings)
    assert "--hostname-override=n1" in argv
    assert "--node-ip=192.0.2.7" in argv
    files = [flag.partition("=")[2] for flag in argv if "=/" in flag]
    assert files
    assert all(name.startswith("/c a/cluster/") for name in files)
