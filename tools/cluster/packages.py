"""Debian packages that the embedded cluster needs, and only those that are missing.

Owns calls of apt-get and dpkg-deb. Imports errors, processes and progress.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.cluster.errors import MissingToolError, PrivilegeError
from tools.cluster.processes import run
from tools.cluster.progress import step

CNI_BIN_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "loopback")

# package -> programs that show that it is there
NODE_PACKAGES = {
    "runc": ("runc",),
    "nftables": ("nft",),
    "iproute2": ("ip",),
    "openssl": ("openssl",),
    "mount": ("mount", "umount"),
}
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def program(name: str) -> Path:
    """Return a program of the host, also when PATH lacks the sbin folders.

    Raises:
        MissingToolError: It is not installed.
    """
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise MissingToolError(f"the program {name} is missing on this host; `up` as root installs it")
    return Path(found)


def cni_bin_dir() -> Path | None:
    """Return the folder that holds the CNI plugins which we use."""
    for folder in CNI_BIN_DIRS:
        if all((folder / plugin).is_file() for plugin in CNI_PLUGINS):
            return folder
    return None


def missing_packages() -> list[str]:
    """Return the names of the packages that a node lacks."""
    lacking = [
        package
        for package, programs in NODE_PACKAGES.items()
        if any(shutil.which(name, path=SEARCH_PATH) is None for name in programs)
    ]
    return lacking if cni_bin_dir() else [*lacking, "containernetworking-plugins"]


def install(packages: Iterable[str], log: Path) -> None:
    """Install packages with apt-get, after refreshing its lists.

    Raises:
        MissingToolError: The host has no apt-get.
        PrivilegeError: Not root.
    """
    names = sorted(packages)
    if not names:
        return
    if shutil.which("apt-get") is None:
        raise MissingToolError(f"missing on this host: {', '.join(names)}; no apt-get to install them with")
    if os.geteuid() != 0:
        raise PrivilegeError(f"missing packages: run as root `apt-get install {' '.join(names)}`")
    # Services of a package must not start: the cluster runs what it needs itself.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = "DPkg::Lock::Timeout=300"
    with step(f"install Debian packages {' '.join(names)}"):
        run(["apt-get", "update", "-qq"], what="apt-get update", timeout_seconds=300, env=env, log=log)
        run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", wait, *names],
            what="apt-get install",
            timeout_seconds=900,
            env=env,
            log=log,
        )


def ensure_etcd(folder: Path, log: Path) -> Path:
    """Return an etcd program: the host's, or the one from Debian's package unpacked below `folder`.

    The package is unpacked and not installed, because installing it would start a service, and so that the
    contract tests need no root.
    """
    found = shutil.which("etcd", path=SEARCH_PATH)
    if found is not None:
        return Path(found)
    kept = folder / "etcd"
    if kept.is_file():
        return kept
    if shutil.which("apt-get") is None:
        raise MissingToolError("etcd is missing on this host; put an etcd program in PATH")
    folder.mkdir(parents=True, exist_ok=True)
    with step("fetch etcd (Debian package etcd-server)"), tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        fetch = ["apt-get", "download", "-qq", "etcd-server"]
        if os.geteuid() == 0:
            run(["apt-get", "update", "-qq"], what="apt-get update", timeout_seconds=300, log=log)
            fetch[1:1] = ["-o", "APT::Sandbox::User=root"]
        run(fetch, what="apt-get download etcd-server", timeout_seconds=300, cwd=work, log=log)
        archive = next(work.glob("etcd-server_*.deb"))
        unpack = ["dpkg-deb", "-x", str(archive), str(work / "root")]
        run(unpack, what="unpack etcd-server", timeout_seconds=60, log=log)
        (work / "root/usr/bin/etcd").replace(kept)
    return kept
