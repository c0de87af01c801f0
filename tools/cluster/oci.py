"""Container images without an image builder: one static program in an empty root, as an OCI archive.

Owns the bytes of such an archive and reading names and digests from any OCI archive.
Source: OCI image specification 1.1 (image layout, manifest, configuration). Imports errors only.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster.errors import ClusterError

NAME_ANNOTATION = "io.containerd.image.name"
REFERENCE_ANNOTATION = "org.opencontainers.image.ref.name"
_TYPE = "application/vnd.oci.image"


@dataclass(frozen=True)
class ArchivedImage:
    """One image of an archive: its name and the digest of its manifest or index (`sha256:...`)."""

    name: str
    digest: str


def architecture() -> str:
    """Return this machine's architecture as OCI and Go name it."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _tar_add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = mode
    archive.addfile(info, io.BytesIO(data))


def layer(files: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed layer with executable files; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            _tar_add(archive, name.lstrip("/"), files[name], 0o755)
    return buffer.getvalue()


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {
        "mediaType": f"{_TYPE}.{media_type}",
        "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
        "size": len(data),
    }


def write_image(
    path: Path, name: str, files: Mapping[str, bytes], entrypoint: Sequence[str], user: str = ""
) -> ArchivedImage:
    """Write an OCI archive with one layer.

    Args:
        path: The archive.
        name: Full image name with tag.
        files: Path in the image -> content, all executable.
        entrypoint: What the container runs.
        user: Numeric `uid:gid`, or empty for root.

    Returns:
        Name and digest, as `read_archive` would read them.
    """
    layer_bytes = layer(files)
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer_bytes).hexdigest()}"]},
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": _descriptor("config.v1+json", config_bytes),
        "layers": [_descriptor("layer.v1.tar", layer_bytes)],
    }
    manifest_bytes = json.dumps(manifest, sort_keys=True).encode()
    top = _descriptor("manifest.v1+json", manifest_bytes)
    top["annotations"] = {NAME_ANNOTATION: name, REFERENCE_ANNOTATION: name}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [top]}
    with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _tar_add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _tar_add(archive, "index.json", json.dumps(index, sort_keys=True).encode())
        for blob in (config_bytes, manifest_bytes, layer_bytes):
            _tar_add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
    return ArchivedImage(name, str(top["digest"]))


def read_archive(path: Path) -> list[ArchivedImage]:
    """Return the images of an OCI archive.

    Returns:
        Empty for an archive without an OCI index (one that `docker save` wrote, say): it has no digests.

    Raises:
        ClusterError: The file is missing or no tar archive.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.removeprefix("./") == "index.json":
                    stream = archive.extractfile(member)
                    index = json.loads(stream.read()) if stream else {}
                    return _images_of(index)
    except FileNotFoundError as error:
        raise ClusterError(f"no image archive at {path}") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise ClusterError(f"{path} is no image archive: {error}") from error
    return []


def _images_of(index: dict[str, Any]) -> list[ArchivedImage]:
    found = []
    for manifest in index.get("manifests", []):
        annotations = manifest.get("annotations") or {}
        name = annotations.get(NAME_ANNOTATION) or annotations.get(REFERENCE_ANNOTATION)
        if name:
            found.append(ArchivedImage(str(name), str(manifest["digest"])))
    return found
