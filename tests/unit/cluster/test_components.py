"""Command lines of the control plane, and when a running component counts as out of date."""

from pathlib import Path

import pytest

from tools.cluster import components
from tools.cluster.supervisor import Component, component_environment


def plane(advertise: str | None) -> components.ControlPlane:
    return components.ControlPlane(
        state=Path("/s"),
        bind_address="127.0.0.1" if advertise is None else "0.0.0.0",
        advertise_address=advertise,
        api_port=1,
        etcd_port=2,
        etcd_peer_port=3,
        controller_manager_port=4,
        scheduler_port=5,
        service_cidr="10.96.0.0/16",
        cluster_cidr="10.244.0.0/24",
    )


def test_the_api_server_dials_nodes_by_address_and_checks_their_certificates() -> None:
    argv = components.apiserver_argv(Path("a"), plane("192.0.2.7"), service_accounts=True)
    assert "--kubelet-preferred-address-types=InternalIP" in argv
    assert "--kubelet-certificate-authority=/s/pki/ca.crt" in argv
    assert "--authorization-mode=Node,RBAC" in argv
    assert "--advertise-address=192.0.2.7" in argv
    assert not any("admission-plugins" in flag for flag in argv)


def test_a_control_plane_without_controllers_admits_pods_without_accounts() -> None:
    argv = components.apiserver_argv(Path("a"), plane(None), service_accounts=False)
    assert "--disable-admission-plugins=ServiceAccount" in argv
    assert "--endpoint-reconciler-type=none" in argv
    assert "--bind-address=127.0.0.1" in argv


def test_only_the_api_server_listens_beyond_this_host() -> None:
    one = plane("192.0.2.7")
    assert "--listen-client-urls=http://127.0.0.1:2" in components.etcd_argv(Path("e"), one)
    for argv in (
        components.controller_manager_argv(Path("m"), one),
        components.scheduler_argv(Path("s"), one),
    ):
        assert "--bind-address=127.0.0.1" in argv


@pytest.mark.parametrize(("argv", "inputs"), [(["x", "--b"], "1"), (["x", "--a"], "2")])
def test_a_changed_flag_or_input_file_makes_a_component_out_of_date(argv: list[str], inputs: str) -> None:
    current = Component("x", ["x", "--a"], "1", lambda: None)
    assert Component("x", argv, inputs, lambda: None).digest != current.digest
    assert Component("x", ["x", "--a"], "1", lambda: None).digest == current.digest


def test_components_talk_to_each_other_without_the_users_proxy() -> None:
    kept = component_environment(
        {"HTTPS_PROXY": "http://p", "no_proxy": "x", "HOME": "/root"}, Path("/bin/c")
    )
    assert "HTTPS_PROXY" not in kept
    assert "no_proxy" not in kept
    assert kept["HOME"] == "/root"
    assert kept["PATH"].startswith("/bin/c:")
