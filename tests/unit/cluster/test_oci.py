"""Image archives written without an image builder, and reading other ones."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tools.cluster import oci
from tools.cluster.errors import ClusterError
from tools.cluster.images import parse_image_list, program_image_name

NAME = "localhost/structuredllm/x:1"


def blobs(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {
            member.name: stream.read()
            for member in archive
            if (stream := archive.extractfile(member)) is not None
        }


def test_every_descriptor_points_at_a_blob_with_that_digest_and_size(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    image = oci.write_image(path, NAME, {"/pause": b"program"}, ["/pause"], "65532:65532")
    files = blobs(path)
    index = json.loads(files["index.json"])
    manifest = json.loads(files["blobs/sha256/" + image.digest.removeprefix("sha256:")])
    for descriptor in (*index["manifests"], manifest["config"], *manifest["layers"]):
        blob = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert hashlib.sha256(blob).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        assert len(blob) == descriptor["size"]
    config = json.loads(files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65532:65532", "WorkingDir": "/"}
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]


def test_the_layer_holds_the_program_executable() -> None:
    with tarfile.open(fileobj=io.BytesIO(oci.layer({"/bin/x": b"abc"}))) as archive:
        member = archive.getmember("bin/x")
        assert member.mode == 0o755
        assert member.size == 3


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    assert oci.write_image(one, NAME, {"/b": b"2", "/a": b"1"}, ["/a"]) == oci.write_image(
        two, NAME, {"/a": b"1", "/b": b"2"}, ["/a"]
    )
    assert one.read_bytes() == two.read_bytes()


def test_an_archive_reads_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    image = oci.write_image(path, NAME, {"/pause": b"program"}, ["/pause"])
    assert oci.read_archive(path) == [image]


def test_an_archive_without_an_index_has_no_digests(tmp_path: Path) -> None:
    path = tmp_path / "docker.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("manifest.json"))
    assert oci.read_archive(path) == []


def test_a_missing_or_damaged_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no image archive at"):
        oci.read_archive(tmp_path / "absent.tar")
    (tmp_path / "bad.tar").write_bytes(b"not a tar archive")
    with pytest.raises(ClusterError, match=r"bad\.tar is no image archive"):
        oci.read_archive(tmp_path / "bad.tar")


def test_the_image_table_of_ctr_is_read_by_name_and_digest() -> None:
    told = (
        "REF TYPE DIGEST SIZE PLATFORMS LABELS\n"
        "localhost/a:1 application/vnd.oci.image.manifest.v1+json sha256:aa 1.0 KiB linux/amd64 -\n"
    )
    assert parse_image_list(told) == {"localhost/a:1": "sha256:aa"}
    assert parse_image_list("") == {}


def test_a_new_build_of_a_program_gets_a_new_image_name() -> None:
    one = program_image_name("pause", Path("/bin/pause-1/pause"))
    assert one.startswith("localhost/structuredllm/cluster-pause:")
    assert one != program_image_name("pause", Path("/bin/pause-2/pause"))
