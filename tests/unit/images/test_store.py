"""The folder of archives: names, digests, pruning, the lock."""

import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest

from tools.images.errors import ImageError
from tools.images.store import (
    archive_digest,
    archive_path,
    build_lock,
    mark_used,
    prune,
    stale_references,
)

PREFIX = "localhost/structuredllm"


def make_archive(path: Path, name: str, content: object) -> Path:
    """Write a tar with one JSON file."""
    data = json.dumps(content).encode()
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return path


def make_old(folder: Path, name: str, age_seconds: int) -> Path:
    """Make an empty archive that was last used `age_seconds` ago."""
    path = folder / name
    path.touch()
    os.utime(path, (1_700_000_000 - age_seconds, 1_700_000_000 - age_seconds))
    return path


def test_an_archive_is_named_after_image_and_tag(tmp_path: Path) -> None:
    assert archive_path(tmp_path, f"{PREFIX}/engine-cpu:dev-1a") == tmp_path / "engine-cpu-dev-1a.tar"


def test_a_reference_without_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="has no name or no tag"):
        archive_path(tmp_path, f"{PREFIX}/operator")


def test_the_two_most_recently_used_archives_of_an_image_are_kept(tmp_path: Path) -> None:
    newest, older, oldest = (make_old(tmp_path, f"operator-dev-{n}.tar", n) for n in (1, 2, 3))
    other = make_old(tmp_path, "gateway-dev-9.tar", 9)
    assert prune(tmp_path, "operator") == [oldest]
    assert {p.name for p in tmp_path.iterdir()} == {newest.name, older.name, other.name}


def test_an_archive_that_is_used_again_is_not_the_one_pruned(tmp_path: Path) -> None:
    _, older, oldest = (make_old(tmp_path, f"operator-dev-{n}.tar", n) for n in (1, 2, 3))
    mark_used(oldest)
    assert prune(tmp_path, "operator") == [older]


def test_images_whose_archive_is_gone_and_older_bases_are_stale(tmp_path: Path) -> None:
    (tmp_path / "operator-dev-1.tar").touch()
    listing = [
        f"{PREFIX}/operator:dev-1",
        f"{PREFIX}/operator:dev-0",
        f"{PREFIX}/engine-cpu-base:dev-b",
        f"{PREFIX}/engine-cpu-base:dev-a",
        "<none>:<none>",
        "docker.io/library/python:3.12",
    ]
    assert stale_references(listing, tmp_path, ("operator", "gateway", "engine-cpu")) == [
        f"{PREFIX}/operator:dev-0",
        f"{PREFIX}/engine-cpu-base:dev-a",
    ]


def test_the_digest_of_an_oci_archive_is_its_manifests(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar", "index.json", {"manifests": [{"digest": "sha256:ab"}]})
    assert archive_digest(archive) == "sha256:ab"


@pytest.mark.parametrize("config", ["ab.json", "blobs/sha256/ab"])
def test_the_digest_of_a_docker_archive_is_its_configs(tmp_path: Path, config: str) -> None:
    archive = make_archive(tmp_path / "a.tar", "manifest.json", [{"Config": config}])
    assert archive_digest(archive) == "sha256:ab"


def test_a_broken_archive_says_which_and_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "a.tar"
    broken.write_bytes(b"no tar")
    with pytest.raises(ImageError, match=r"a\.tar is not a readable image archive .* delete it"):
        archive_digest(broken)


def test_two_builds_do_not_run_at_once(tmp_path: Path) -> None:
    said: list[str] = []
    waiting, order = threading.Event(), []

    def hear(text: str) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with build_lock(tmp_path / "lock", hear):
            order.append("second")

    thread = threading.Thread(target=second)
    with build_lock(tmp_path / "lock", said.append):
        thread.start()
        assert waiting.wait(2)
        order.append("first")
    thread.join(2)
    assert order == ["first", "second"]
    assert said == ["another build of images is running; waiting for it"]
