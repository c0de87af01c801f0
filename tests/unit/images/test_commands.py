"""Argument lists of the builders, and which builder is chosen."""

from pathlib import Path

import pytest

from tools.images.commands import (
    Buildah,
    BuildRequest,
    HostHelp,
    build_arguments,
    choose_builder,
    export_arguments,
    pick_driver,
)
from tools.images.debian import mmdebstrap_arguments

REQUEST = BuildRequest(
    Path("/r/Dockerfile"),
    Path("/r"),
    "localhost/structuredllm/operator:dev-1",
    target="operator",
    args={"PYTHON_IMAGE": "base:1"},
    contexts={"models": Path("/c/models")},
)
HELP = HostHelp(certificates=True, uv_cache=Path("/c/uv"))


def test_buildah_builds_without_a_runtime_or_a_daemon() -> None:
    arguments = build_arguments("buildah", REQUEST, HostHelp())
    assert arguments == [
        *("bud", "--isolation", "chroot", "--layers", "--file", "/r/Dockerfile"),
        *("--tag", "localhost/structuredllm/operator:dev-1", "--target", "operator"),
        *("--build-arg", "PYTHON_IMAGE=base:1", "--build-context", "models=/c/models", "/r"),
    ]


def test_certificates_are_mounted_read_only_and_named_by_build_arguments_only() -> None:
    arguments = build_arguments("buildah", REQUEST, HELP)
    assert "/etc/ssl/certs:/etc/ssl/certs:ro" in arguments
    assert "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt" in arguments
    assert "UV_SYSTEM_CERTS=true" in arguments
    assert "--env" not in arguments  # --env would stay in the image


def test_the_package_cache_is_mounted_where_the_build_looks_for_it() -> None:
    arguments = build_arguments("buildah", REQUEST, HELP)
    assert "/c/uv:/opt/uv-cache" in arguments
    assert "UV_CACHE_DIR=/opt/uv-cache" in arguments


def test_docker_gets_no_option_that_it_does_not_have() -> None:
    arguments = build_arguments("docker", REQUEST, HELP)
    assert arguments[0] == "build"
    assert not {"--volume", "--isolation", "--layers"} & set(arguments)


def test_podman_gets_the_hosts_help_and_needs_no_chroot() -> None:
    arguments = build_arguments("podman", REQUEST, HELP)
    assert "--volume" in arguments
    assert "--isolation" not in arguments


def test_archives_carry_the_name_that_pods_use() -> None:
    reference, file = REQUEST.reference, Path("/c/o.half")
    assert export_arguments("buildah", reference, file)[-1] == f"oci-archive:/c/o.half:{reference}"
    assert export_arguments("podman", reference, file)[-1] == reference
    assert export_arguments("docker", reference, file) == ["save", "--output", "/c/o.half", reference]


def test_buildah_keeps_to_its_own_storage() -> None:
    buildah = Buildah(Path("/c/storage"), Path("/run/x"), "overlay")
    assert buildah.command("images") == [
        *("buildah", "--root", "/c/storage", "--runroot", "/run/x", "--storage-driver", "overlay", "images")
    ]


@pytest.mark.parametrize(
    ("wish", "running", "expected"),
    [
        (None, [], "buildah"),
        (None, ["docker"], "docker"),
        (None, ["podman"], "podman"),
        (None, ["docker", "podman"], "docker"),
        ("", ["docker"], "docker"),
        ("buildah", ["docker"], "buildah"),
        ("podman", [], "podman"),
    ],
)
def test_a_wish_wins_then_a_running_engine_then_buildah(
    wish: str | None, running: list[str], expected: str
) -> None:
    assert choose_builder(wish, running) == expected


def test_an_unknown_wish_names_the_variable_and_the_choices() -> None:
    with pytest.raises(ValueError, match="IMAGE_BUILDER='kaniko': expected buildah, podman or docker"):
        choose_builder("kaniko", [])


@pytest.mark.parametrize(
    ("file_system", "driver"), [("ext4", "overlay"), ("overlay", "vfs"), ("nfs4", "vfs")]
)
def test_the_storage_driver_fits_the_file_system(file_system: str, driver: str) -> None:
    assert pick_driver(file_system) == driver


def test_mmdebstrap_is_asked_for_the_suite_and_the_packages() -> None:
    arguments = mmdebstrap_arguments("bookworm", ("python3", "ca-certificates"), Path("/t/base.tar"))
    assert "--include=python3,ca-certificates" in arguments
    assert arguments[-2:] == ["bookworm", "/t/base.tar"]
