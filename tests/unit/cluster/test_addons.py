"""Manifests of CoreDNS and values of the LeaderWorkerSet chart."""

from pathlib import Path
from typing import Any

from tools.cluster import addons


def by_kind(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in manifests}


def test_dns_is_served_at_the_address_that_kubelet_gives_pods() -> None:
    kinds = by_kind(addons.coredns_manifests("localhost/coredns:1", "10.96.0.10", forward=True))
    assert kinds["Service"]["spec"]["clusterIP"] == "10.96.0.10"
    pod = kinds["Deployment"]["spec"]["template"]
    assert pod["metadata"]["labels"] == kinds["Service"]["spec"]["selector"]
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert pod["spec"]["containers"][0]["image"] == "localhost/coredns:1"


def test_dns_may_read_only_what_it_serves() -> None:
    kinds = by_kind(addons.coredns_manifests("x", "10.96.0.10", forward=True))
    verbs = {verb for rule in kinds["ClusterRole"]["rules"] for verb in rule["verbs"]}
    resources = {resource for rule in kinds["ClusterRole"]["rules"] for resource in rule["resources"]}
    assert verbs == {"list", "watch"}
    assert resources == {"services", "namespaces", "endpointslices"}


def test_names_outside_are_forwarded_only_where_the_host_has_servers() -> None:
    assert "forward . /etc/resolv.conf" in addons.corefile(forward=True)
    assert "forward" not in addons.corefile(forward=False)


def test_the_chart_uses_the_local_image_and_little_of_the_node() -> None:
    values = addons.lws_values("localhost:5000/lws:abc")
    assert values["image"]["manager"] == {
        "repository": "localhost:5000/lws",
        "tag": "abc",
        "pullPolicy": "IfNotPresent",
    }
    assert values["resources"]["requests"]["cpu"] == "10m"
    argv = addons.helm_argv(Path("helm"), Path("/k"), Path("/chart"), Path("/values"))
    assert argv[:5] == ["helm", "upgrade", "--install", "lws", "/chart"]
    assert argv[argv.index("--kubeconfig") + 1] == "/k"
