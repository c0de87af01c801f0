"""The argument lists for buildah, podman and docker.

Pure: values in, argument lists out. Starts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BuilderKind = Literal["buildah", "podman", "docker"]

CERTIFICATES = Path("/etc/ssl/certs")
CERTIFICATE_FILE = CERTIFICATES / "ca-certificates.crt"
# A place that no base has, so that mounting hides and loses none of the base's files; at most an empty folder
# stays in a layer.
UV_CACHE_MOUNT = "/opt/uv-cache"


@dataclass(frozen=True)
class HostHelp:
    """What the host lends to the RUN steps of a build; none of it ends up in an image.

    `certificates` mounts the host's certificate folder (a private CA may stand before the registries);
    `uv_cache` is the host's package cache, None when there is none.
    """

    certificates: bool = False
    uv_cache: Path | None = None


@dataclass(frozen=True)
class BuildRequest:
    """One build: `dockerfile` and `context` on disk, the stage, the name to give, arguments and contexts."""

    dockerfile: Path
    context: Path
    reference: str
    target: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Buildah:
    """Where buildah keeps its layers, and the storage driver that works there."""

    root: Path
    run_root: Path
    driver: str

    def command(self, *arguments: str) -> list[str]:
        """Return `buildah ARGUMENTS` for this storage."""
        return [
            *("buildah", "--root", str(self.root), "--runroot", str(self.run_root)),
            *("--storage-driver", self.driver),
            *arguments,
        ]


def pick_driver(file_system: str) -> str:
    """Return buildah's storage driver for a folder on `file_system`.

    An overlay cannot lie on another overlay (the inside of a container), and wants a local file system.
    """
    return "overlay" if file_system in {"ext4", "xfs", "btrfs", "tmpfs", "f2fs"} else "vfs"


def host_help_arguments(help_: HostHelp) -> list[str]:
    """Return the mounts and build arguments that lend the host's certificates and package cache."""
    arguments: list[str] = []
    if help_.certificates:
        arguments += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        arguments += ["--build-arg", f"PIP_CERT={CERTIFICATE_FILE}"]
        arguments += ["--build-arg", f"SSL_CERT_FILE={CERTIFICATE_FILE}"]
        arguments += ["--build-arg", "UV_SYSTEM_CERTS=true"]
    if help_.uv_cache is not None:
        arguments += ["--volume", f"{help_.uv_cache}:{UV_CACHE_MOUNT}"]
        arguments += ["--build-arg", f"UV_CACHE_DIR={UV_CACHE_MOUNT}"]
    return arguments


def build_arguments(kind: BuilderKind, request: BuildRequest, help_: HostHelp) -> list[str]:
    """Return the arguments after the program's name (and storage options) of one build.

    docker's BuildKit has no --volume: there the host's help is left out, and a private CA is configured in
    BuildKit itself.
    """
    arguments = ["bud" if kind == "buildah" else "build"]
    if kind == "buildah":
        # No container runtime and no network set-up needed: RUN steps use a chroot and the host's network.
        arguments += ["--isolation", "chroot", "--layers"]
    if kind != "docker":
        arguments += host_help_arguments(help_)
    arguments += ["--file", str(request.dockerfile), "--tag", request.reference]
    if request.target is not None:
        arguments += ["--target", request.target]
    for key, value in sorted(request.args.items()):
        arguments += ["--build-arg", f"{key}={value}"]
    for key, path in sorted(request.contexts.items()):
        arguments += ["--build-context", f"{key}={path}"]
    return [*arguments, str(request.context)]


def export_arguments(kind: BuilderKind, reference: str, file: Path) -> list[str]:
    """Return the arguments that write an image into one file which containerd and kind can load.

    buildah: an OCI archive, because its digest is the one containerd lists (that is how a second import is
    skipped); such archives are always compressed, and export plus import took 29 s with zstd's fastest level
    against 51 s with gzip for the 356 MB operator image on two busy cores (17 s uncompressed as a Docker
    archive, whose digest containerd makes up).
    """
    if kind == "buildah":
        fast = ("--compression-format", "zstd", "--compression-level", "1")
        return ["push", "--quiet", *fast, reference, f"oci-archive:{file}:{reference}"]
    if kind == "podman":
        return ["save", "--quiet", "--format", "oci-archive", "--output", str(file), reference]
    return ["save", "--output", str(file), reference]


def choose_builder(wish: str | None, running: Sequence[str]) -> BuilderKind:
    """Return the builder: `wish` (IMAGE_BUILDER) or the first of docker and podman that runs, else buildah.

    Raises:
        ValueError: `wish` is none of buildah, podman, docker.
    """
    if wish:
        for kind in ("buildah", "podman", "docker"):
            if wish == kind:
                return kind
        raise ValueError(f"IMAGE_BUILDER={wish!r}: expected buildah, podman or docker")
    if "docker" in running:
        return "docker"
    return "podman" if "podman" in running else "buildah"
