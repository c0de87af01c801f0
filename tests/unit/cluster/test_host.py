"""Reading the host: cgroup layout, capabilities, routes, name servers, kernel settings."""

import os
from pathlib import Path

import pytest

from tools.cluster import host
from tools.cluster.errors import ClusterError, PrivilegeError, SettingsError

V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n"
HYBRID = (
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)


@pytest.mark.parametrize(("mounts", "version"), [(V2, 2), (HYBRID, 1)])
def test_cgroup_version(mounts: str, version: int) -> None:
    assert host.cgroup_version(mounts) == version


def test_a_host_without_cgroups_is_refused() -> None:
    with pytest.raises(ClusterError, match="no cgroups"):
        host.cgroup_version("proc /proc proc rw 0 0\n")


@pytest.mark.parametrize(
    ("mask", "granted"),
    [("000001ffffffffff", True), ("000001fffeffffff", False), ("0000000000000000", False)],
)
def test_cap_sys_resource(mask: str, granted: bool) -> None:
    status = f"Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t{mask}\n"
    assert host.has_capability(status, host.CAP_SYS_RESOURCE) is granted


def test_routes_leave_out_the_default_route() -> None:
    told = '[{"dst":"default","dev":"eth0"},{"dst":"192.0.2.0/24"},{"dst":"10.244.0.5"}]'
    assert [str(route) for route in host.parse_routes(told)] == ["192.0.2.0/24", "10.244.0.5/32"]
    assert host.parse_routes("") == []


def test_a_loopback_name_server_is_passed_over(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("nameserver 127.0.0.53\noptions edns0\n")
    real.write_text("# comment\nnameserver 192.0.2.53\n")
    assert host.choose_resolv_conf((stub, real)) == real
    assert host.choose_resolv_conf((stub, tmp_path / "absent")) is None


def test_kernel_settings_go_back_to_what_they_were(tmp_path: Path) -> None:
    for name, value in (("net/ipv4/ip_forward", "0\n"), ("kernel/panic", "0\n"), ("kernel/other", "1\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value)
    before = host.read_sysctls(tmp_path)
    assert before == {"net/ipv4/ip_forward": "0", "kernel/panic": "0"}
    (tmp_path / "net/ipv4/ip_forward").write_text("1\n")
    host.restore_sysctls({**before, "kernel/other": "9", "kernel/absent": "1"}, tmp_path)
    assert (tmp_path / "net/ipv4/ip_forward").read_text() == "0"
    assert (tmp_path / "kernel/other").read_text() == "1\n"


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PrivilegeError, match="sudo"):
        host.require_root("up")


def test_a_second_kube_proxy_on_the_host_is_refused() -> None:
    host.refuse_second_kube_proxy("table ip filter\ntable ip kube-proxy-other\n", "ip kube-proxy")
    with pytest.raises(SettingsError, match="another Kubernetes runs"):
        host.refuse_second_kube_proxy("table ip filter\ntable ip kube-proxy\n", "ip kube-proxy")
