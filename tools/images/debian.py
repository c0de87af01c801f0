"""Makes the Debian base image with mmdebstrap, for hosts that reach package registries but no image registry.

Owns what is asked of mmdebstrap. Its source is part of the base image's tag (`recipes`).
"""

from collections.abc import Sequence
from pathlib import Path

# Manuals and translations are a third of a minimal Debian and of no use in a container.
EXCLUDED_PATHS = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*")


def mmdebstrap_arguments(suite: str, packages: Sequence[str], target: Path) -> list[str]:
    """Return the command that writes a root file system of Debian `suite` as a tar file to `target`.

    The variant `apt` keeps apt in the image, which the engine's base needs for its system library.
    """
    return [
        "mmdebstrap",
        "--variant=apt",
        f"--include={','.join(packages)}",
        # A half-written base is thrown away, so nothing has to reach the disk file by file.
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED_PATHS),
        suite,
        str(target),
    ]
