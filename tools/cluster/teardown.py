"""Removing what `up` made: containers, programs, mounts, network tables, cgroups, folders, kernel settings.

Owns the order and works from what it finds, not from what `up` finished, so it also cleans up after a
failure, and a second run finds nothing. Images and logs stay. Imports everything but `cluster`.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tools.cluster import processes
from tools.cluster.errors import ClusterError, CommandError
from tools.cluster.host import restore_sysctls
from tools.cluster.node import NETWORK_NAME, NFT_TABLE
from tools.cluster.packages import SEARCH_PATH, program
from tools.cluster.progress import say, step
from tools.cluster.settings import Places

# kubelet before containers, or it would start them again; etcd last, as everything writes to it.
PROGRAMS_BEFORE_CONTAINERS = ("kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager")
PROGRAMS_AFTER_CONTAINERS = ("containerd", "kube-apiserver", "etcd")
NFT_TABLES = (f"ip {NFT_TABLE}", "ip kube-proxy", "ip6 kube-proxy")
CGROUP_ROOT = Path("/sys/fs/cgroup")
CONTAINERD_TIMEOUT_SECONDS = 30.0
REMOVAL_ROUNDS = 8


def mounts_below(mountinfo: str, folders: Iterable[Path]) -> list[str]:
    """Return the mount points at or below folders in the text of `/proc/self/mountinfo`, deepest first."""
    roots = [str(folder) for folder in folders]
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines() if len(line.split()) > 4]
    found = [
        point for point in points if any(point == root or point.startswith(f"{root}/") for root in roots)
    ]
    return sorted(found, key=lambda point: (point.count("/"), point), reverse=True)


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as octal numbers.
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def shims_of(command_lines: Iterable[tuple[int, list[str]]], socket: Path) -> list[int]:
    """Return the pids of containerd's shims that belong to our socket, from (pid, argv) pairs."""
    return [
        pid
        for pid, argv in command_lines
        if argv and argv[0].endswith("containerd-shim-runc-v2") and str(socket) in argv
    ]


def parse_sandbox_list(told: str) -> list[str]:
    """Return the ids in the table that `ctr sandboxes ls` prints."""
    return [line.split()[0] for line in told.splitlines()[1:] if line.strip()]


def exists(places: Places) -> bool:
    """Return whether anything of a cluster is there."""
    return places.state.exists() or places.run.exists()


class Teardown:
    """Takes one cluster down, whatever is left of it."""

    def __init__(self, places: Places, ctr: Path | None) -> None:
        self._places = places
        self._ctr = ctr
        self._problems: list[str] = []

    def run(self) -> None:
        """Remove everything; one part that fails does not keep the others from being removed.

        Raises:
            ClusterError: Names what is left.
        """
        steps: list[tuple[str, Callable[[], None]]] = [
            ("stop kubelet and controllers", lambda: self._stop(PROGRAMS_BEFORE_CONTAINERS)),
            ("remove containers", self._remove_containers),
            ("stop containerd and control plane", lambda: self._stop(PROGRAMS_AFTER_CONTAINERS)),
            ("remove what containers left", self._remove_leftovers),
            ("unmount", self._unmount),
            ("remove network tables", self._remove_network),
            ("remove cgroups", self._remove_cgroups),
            ("restore the host's settings", self._restore_host),
            ("remove the cluster's files", self._remove_files),
        ]
        with step("take the cluster down"):
            for title, action in steps:
                try:
                    action()
                except (ClusterError, OSError) as error:
                    self._problems.append(f"{title}: {error}")
                    say(f"cluster:   {title}: {error}")
        if self._problems:
            raise ClusterError(
                f"not all of the cluster could be removed ({'; '.join(self._problems)}); run `down` again"
            )

    def _stop(self, names: Iterable[str]) -> None:
        for name in names:
            processes.stop(self._places.pidfile(name), grace_seconds=15.0)
            processes.kill_strays(name, self._places.state)

    def _containerd_answers(self) -> bool:
        """Whether containerd runs; one that ended earlier is started again, to forget its containers."""
        places = self._places
        pidfile, config = places.pidfile("containerd"), places.state / "containerd.toml"
        if processes.running(pidfile) is None:
            if self._ctr is None or not config.is_file() or not places.containerd_root.is_dir():
                return False
            folder = self._ctr.parent
            places.run.mkdir(parents=True, exist_ok=True)
            processes.start(
                [str(folder / "containerd"), "--config", str(config)],
                log=places.log("containerd"),
                pidfile=pidfile,
                env={**os.environ, "PATH": f"{folder}{os.pathsep}{SEARCH_PATH}"},
            )
        try:
            processes.wait_until(
                self._ask_containerd,
                what="containerd",
                timeout_seconds=CONTAINERD_TIMEOUT_SECONDS,
                pidfile=pidfile,
            )
        except ClusterError:
            return False
        return True

    def _ask_containerd(self) -> str | None:
        try:
            self._run_ctr("version")
        except ClusterError as error:
            return error.cause
        return None

    def _run_ctr(self, *args: str) -> str:
        if self._ctr is None:
            raise CommandError("ctr is not built")
        argv = [str(self._ctr), f"--address={self._places.socket}", "--namespace=k8s.io", *args]
        return processes.run(argv, what=f"ctr {args[0]}", timeout_seconds=60)

    def _remove_containers(self) -> None:
        if not self._containerd_answers():
            return
        self._forget(("tasks", "ls", "-q"), str.split, ("tasks", "rm", "--force"))
        self._forget(("containers", "ls", "-q"), str.split, ("containers", "rm"))
        self._forget(("sandboxes", "ls"), parse_sandbox_list, ("sandboxes", "rm", "--force"))

    def _forget(
        self, listing: Sequence[str], parse: Callable[[str], list[str]], removal: Sequence[str]
    ) -> None:
        """Remove all that a listing names; again, since containerd itself deletes some in the meantime."""
        failed: ClusterError | None = None
        for _ in range(REMOVAL_ROUNDS):
            names = parse(self._run_ctr(*listing))
            if not names:
                return
            try:
                self._run_ctr(*removal, *names)
            except ClusterError as error:
                failed = error
                time.sleep(processes.POLL_SECONDS)
        raise failed or CommandError(f"ctr {removal[0]}: some are left")

    def _remove_leftovers(self) -> None:
        """End shims and containers that containerd no longer knew or could not be asked about."""
        places = self._places
        shims = shims_of(processes.command_lines(), places.socket)
        for pid in shims:
            processes.kill(pid)
        runc_root = places.run / "runc" / "k8s.io"
        if runc_root.is_dir():
            for container in sorted(runc_root.iterdir()):
                argv = [str(program("runc")), "--root", str(runc_root), "delete", "--force", container.name]
                processes.run(argv, what="runc delete", timeout_seconds=30)
        for bundle in (places.run / "containerd").glob("io.containerd.runtime.v2.task/*/*"):
            self._remove_shim_socket(bundle)
        # containerd would read these at its next start and look for sandboxes that are gone.
        for name in ("io.containerd.grpc.v1.cri", "io.containerd.sandbox.controller.v1.shim"):
            shutil.rmtree(places.containerd_root / name, ignore_errors=True)

    @staticmethod
    def _remove_shim_socket(bundle: Path) -> None:
        for name in ("bootstrap.json", "address"):
            path = bundle / name
            if not path.is_file():
                continue
            text = path.read_text()
            try:
                address = str(json.loads(text)["address"])
            except (ValueError, KeyError, TypeError):
                address = text.strip()
            socket = Path(address.removeprefix("unix://"))
            if socket.parent == Path("/run/containerd/s"):
                socket.unlink(missing_ok=True)

    def _unmount(self) -> None:
        folders = (self._places.state, self._places.run)
        umount = str(program("umount"))
        for lazy in (False, True):
            for point in mounts_below(Path("/proc/self/mountinfo").read_text(), folders):
                try:
                    argv = [umount, *(["-l"] if lazy else []), point]
                    processes.run(argv, what="umount", timeout_seconds=30)
                except CommandError as error:
                    # Busy: the second round detaches it.
                    say(f"cluster:   {error}")
        left = mounts_below(Path("/proc/self/mountinfo").read_text(), folders)
        if left:
            raise CommandError(f"still mounted: {', '.join(left[:3])}")

    def _remove_network(self) -> None:
        # Only after kube-proxy of ours ran can its tables be ours.
        tables = NFT_TABLES if self._places.log("kube-proxy").exists() else NFT_TABLES[:1]
        nft = shutil.which("nft", path=SEARCH_PATH)
        if nft is not None and self._places.state.exists():
            have = processes.run([nft, "list", "tables"], what="list nft tables", timeout_seconds=10)
            for table in tables:
                if f"table {table}" in have.splitlines():
                    processes.run([nft, "delete", "table", *table.split()], what="nft", timeout_seconds=10)
        for folder in ("results", "cache/results"):
            for path in (Path("/var/lib/cni") / folder).glob(f"{NETWORK_NAME}-*"):
                path.unlink(missing_ok=True)

    def _remove_cgroups(self) -> None:
        """Remove kubelet's cgroups that are empty; one in use belongs to another kubelet and stays."""
        for root in (CGROUP_ROOT, *(path for path in CGROUP_ROOT.iterdir() if path.is_dir())):
            top = root / "kubepods"
            if not top.is_dir():
                continue
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    continue

    def _restore_host(self) -> None:
        places = self._places
        log_links = Path("/var/log/containers")
        if log_links.is_dir():
            for link in log_links.iterdir():
                if link.is_symlink() and str(places.logs) in os.readlink(link):
                    link.unlink()
        try:
            footprint = json.loads(places.footprint_file.read_text())
        except (FileNotFoundError, ValueError):
            return
        restore_sysctls(footprint["sysctls"])
        mounts = Path("/proc/self/mountinfo").read_text()
        for folder in footprint["absent"]:
            if not mounts_below(mounts, [Path(folder)]):
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_files(self) -> None:
        places = self._places
        if mounts_below(Path("/proc/self/mountinfo").read_text(), (places.state, places.run)):
            raise CommandError("mounts are left below the cluster's folders, so they are kept")
        for folder in (places.run, places.logs / "pods"):
            if folder.exists():
                shutil.rmtree(folder)
        places.kubeconfig.unlink(missing_ok=True)
        if self._problems:
            # Keep pid files and footprint, so that the next `down` still knows what to remove.
            return
        if places.state.exists():
            shutil.rmtree(places.state)
