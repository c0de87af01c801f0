"""Certificates: what openssl is asked for, and when one is made again."""

import json
import subprocess
from pathlib import Path

from tools.cluster import pki


def test_the_server_certificate_names_the_service_address_and_dns_names() -> None:
    leaf = pki.server_leaf(["127.0.0.1", "10.96.0.1"])
    assert "subjectAltName=DNS:kubernetes,DNS:kubernetes.default," in pki.extensions(leaf)
    assert "IP:10.96.0.1" in leaf.alternative_names


def test_a_client_certificate_has_no_names() -> None:
    admin = pki.client_leaves()[0]
    assert admin.subject.startswith("/O=system:masters/")
    assert "subjectAltName" not in pki.extensions(admin)


def test_a_node_certificate_is_in_the_nodes_group() -> None:
    kubelet = pki.node_leaves("n1", "192.0.2.7")[0]
    assert kubelet.subject == "/O=system:nodes/CN=system:node:n1"
    assert "IP:192.0.2.7" in kubelet.alternative_names


def test_commands_keep_keys_in_their_folder() -> None:
    folder = Path("/p")
    leaf = pki.Leaf("admin", "/CN=a")
    for argv in (pki.authority_argv(folder), pki.request_argv(folder, leaf), pki.sign_argv(folder, leaf)):
        assert argv[0] == "openssl"
        assert any(word.startswith("/p/") for word in argv)
        assert not any(word.startswith("-nokeys") for word in argv)


def test_certificates_are_kept_until_they_have_to_say_something_else(tmp_path: Path) -> None:
    first = pki.ensure_pki(tmp_path, [pki.Leaf("apiserver", "/CN=a", ("IP:127.0.0.1",))])
    made = (tmp_path / "apiserver.crt").read_bytes()
    assert pki.ensure_pki(tmp_path, [pki.Leaf("apiserver", "/CN=a", ("IP:127.0.0.1",))]) == first
    assert (tmp_path / "apiserver.crt").read_bytes() == made
    changed = pki.ensure_pki(tmp_path, [pki.Leaf("apiserver", "/CN=a", ("IP:192.0.2.7",))])
    assert changed != first
    told = subprocess.run(
        ["openssl", "x509", "-in", str(tmp_path / "apiserver.crt"), "-noout", "-text"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "IP Address:192.0.2.7" in told
    verified = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "apiserver.crt")]
    subprocess.run(verified, check=True, capture_output=True)


def test_an_interrupted_certificate_is_made_again(tmp_path: Path) -> None:
    leaf = pki.Leaf("admin", "/CN=a")
    pki.ensure_pki(tmp_path, [leaf])
    (tmp_path / "admin.made").unlink()
    (tmp_path / "admin.crt").write_text("half")
    pki.ensure_pki(tmp_path, [leaf])
    assert "BEGIN CERTIFICATE" in (tmp_path / "admin.crt").read_text()


def test_a_kubeconfig_needs_no_other_file_and_is_private(tmp_path: Path) -> None:
    pki.ensure_pki(tmp_path, [pki.Leaf("admin", "/CN=a")])
    path = pki.write_kubeconfig(tmp_path / "kubeconfig", tmp_path, "admin", "https://127.0.0.1:1")
    config = json.loads(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert str(tmp_path) not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
