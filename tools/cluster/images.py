"""Images in the node's containerd: what is there, importing archives, the cluster's own small images.

Owns calls of `ctr images`. Imports binaries, oci, processes, progress and settings.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.binaries import ensure_tool
from tools.cluster.errors import CommandError
from tools.cluster.oci import read_archive, write_image
from tools.cluster.processes import run
from tools.cluster.progress import say, step
from tools.cluster.settings import Places

IMPORT_TIMEOUT_SECONDS = 900.0
PREFIX = "localhost/structuredllm"


def ctr(places: Places, *args: str, timeout_seconds: float = 60.0, what: str = "ask containerd") -> str:
    """Run ctr in kubelet's namespace and return its stdout."""
    argv = [str(ensure_tool("ctr")), f"--address={places.socket}", "--namespace=k8s.io", *args]
    return run(argv, what=what, timeout_seconds=timeout_seconds)


def parse_image_list(told: str) -> dict[str, str]:
    """Return name -> digest from the table that `ctr images ls` prints."""
    rows = (line.split() for line in told.splitlines()[1:])
    return {row[0]: row[2] for row in rows if len(row) >= 3}


def present_images(places: Places) -> dict[str, str]:
    """Return name -> digest of the images in containerd."""
    return parse_image_list(ctr(places, "images", "ls"))


def load_image(places: Places, archive: Path) -> list[str]:
    """Import an image archive; skipped when containerd has each image of it under the same digest.

    Returns:
        The images' names.

    Raises:
        ClusterError: The archive is unreadable, or containerd refuses it.
    """
    wanted = read_archive(archive)
    before = present_images(places)
    if wanted and all(before.get(image.name) == image.digest for image in wanted):
        names = [image.name for image in wanted]
        say(f"cluster: already loaded: {', '.join(names)}")
        return names
    size = archive.stat().st_size / 1e6
    with step(f"import {archive.name} ({size:.0f} MB)"):
        ctr(
            places,
            *("images", "import", "--local", str(archive)),
            timeout_seconds=IMPORT_TIMEOUT_SECONDS,
            what=f"import {archive}",
        )
    after = present_images(places)
    by_digest = {digest: name for name, digest in after.items()}
    for image in wanted:
        if image.name in after:
            continue
        # containerd may have completed a short name; pods name the image as the archive does.
        if image.digest not in by_digest:
            raise CommandError(f"containerd took {archive} but does not list {image.name}")
        ctr(places, "images", "tag", by_digest[image.digest], image.name, what=f"name {image.name}")
    return [image.name for image in wanted] or sorted(after.keys() - before.keys())


def program_image_name(name: str, program: Path) -> str:
    """Return the name of the image around a program; it changes with the program's build."""
    tag = hashlib.sha256(program.parent.name.encode()).hexdigest()[:12]
    return f"{PREFIX}/cluster-{name}:{tag}"


def ensure_program_image(
    places: Places, name: str, program: Path, inside: str, user: str, arguments: Sequence[str] = ()
) -> str:
    """Make and import an image that holds one static program, unless containerd has it.

    Args:
        places: The cluster's folders.
        name: Short name, e.g. `coredns`.
        program: The static program on this host.
        inside: Its path in the image.
        user: Numeric `uid:gid`, or empty for root.
        arguments: Fixed arguments.

    Returns:
        The image's name.
    """
    image = program_image_name(name, program)
    if image in present_images(places):
        return image
    with step(f"make image {image}"), tempfile.TemporaryDirectory(dir=places.home) as folder:
        archive = Path(folder) / f"{name}.tar"
        write_image(archive, image, {inside: program.read_bytes()}, [inside, *arguments], user)
        ctr(
            places,
            *("images", "import", "--local", str(archive)),
            timeout_seconds=IMPORT_TIMEOUT_SECONDS,
            what=f"import {image}",
        )
    return image
