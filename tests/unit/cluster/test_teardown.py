"""Taking the cluster down: what is found, the order, and going on past a part that fails."""

import json
from pathlib import Path

import pytest

from tools.cluster import teardown
from tools.cluster.errors import ClusterError, CommandError
from tools.cluster.settings import Places

MOUNTINFO = """22 1 254:0 / / rw - ext4 /dev/root rw
90 22 0:40 / /c/state/kubelet/pods/1/volumes/a rw - tmpfs tmpfs rw
91 90 0:41 / /c/state/kubelet/pods/1/volumes/a/deep\\040er rw - tmpfs tmpfs rw
92 22 0:42 / /run/x/containerd/netns/cni-1 rw - nsfs nsfs rw
93 22 0:43 / /c/state-of-somebody-else rw - tmpfs tmpfs rw
"""


def test_mounts_are_found_deepest_first_and_only_below_our_folders() -> None:
    assert teardown.mounts_below(MOUNTINFO, [Path("/c/state"), Path("/run/x")]) == [
        "/c/state/kubelet/pods/1/volumes/a/deep er",
        "/c/state/kubelet/pods/1/volumes/a",
        "/run/x/containerd/netns/cni-1",
    ]
    assert teardown.mounts_below("", [Path("/c")]) == []


def test_only_shims_of_our_socket_are_ours() -> None:
    socket = Path("/run/structuredllm-1/containerd.sock")
    shim = "/cache/bin/containerd-shim-runc-v2"
    lines = [
        (10, [shim, "-namespace", "k8s.io", "-id", "a", "-address", str(socket)]),
        (11, [shim, "-namespace", "k8s.io", "-id", "b", "-address", "/run/containerd/containerd.sock"]),
        (12, ["vim", str(socket)]),
        (13, [""]),
    ]
    assert teardown.shims_of(lines, socket) == [10]


def test_sandboxes_are_read_without_the_heading() -> None:
    assert teardown.parse_sandbox_list("ID CREATED RUNTIME\nabc 2026 io.containerd.runc.v2\n\n") == ["abc"]
    assert teardown.parse_sandbox_list("") == []


def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "cluster")


def test_nothing_there_is_seen_as_nothing(tmp_path: Path) -> None:
    assert not teardown.exists(places(tmp_path))


class Recorder(teardown.Teardown):
    """A teardown whose parts only write down that they were asked for."""

    def __init__(self, where: Places, failing: str = "") -> None:
        super().__init__(where, None)
        self.calls: list[str] = []
        self.failing = failing

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise CommandError(f"{name} broke")

    def _stop(self, names: object) -> None:
        self._note("stop " + str(names))

    def _remove_containers(self) -> None:
        self._note("containers")

    def _remove_leftovers(self) -> None:
        self._note("leftovers")

    def _unmount(self) -> None:
        self._note("unmount")

    def _remove_network(self) -> None:
        self._note("network")

    def _remove_cgroups(self) -> None:
        self._note("cgroups")

    def _restore_host(self) -> None:
        self._note("host")


def filled(where: Places) -> None:
    for folder in (where.state, where.containerd_root, where.logs / "pods"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    where.kubeconfig.write_text("x")
    where.footprint_file.write_text(json.dumps({"absent": [], "sysctls": {}}))


def test_kubelet_stops_before_containers_and_files_go_last(tmp_path: Path) -> None:
    where = places(tmp_path)
    filled(where)
    recorder = Recorder(where)
    recorder.run()
    order = [call.split()[0] for call in recorder.calls]
    assert order == ["stop", "containers", "stop", "leftovers", "unmount", "network", "cgroups", "host"]
    assert "kubelet" in recorder.calls[0]
    assert "containerd" in recorder.calls[2]
    assert not where.state.exists()
    assert not where.kubeconfig.exists()
    assert (where.containerd_root / "file").exists()
    assert where.logs.exists()
    Recorder(where).run()


def test_a_part_that_fails_is_named_the_others_run_and_the_state_stays(tmp_path: Path) -> None:
    where = places(tmp_path)
    filled(where)
    recorder = Recorder(where, failing="network")
    with pytest.raises(ClusterError, match=r"remove network tables: network broke.*run `down` again"):
        recorder.run()
    assert recorder.calls[-1] == "host"
    assert where.footprint_file.exists()
    Recorder(where).run()
    assert not where.state.exists()


class Containerd(teardown.Teardown):
    """A teardown that talks to a list of tasks; the first removals lose a race with containerd."""

    def __init__(self, where: Places, races: int) -> None:
        super().__init__(where, Path("/bin/ctr"))
        self.races = races
        self.left = ["a", "b"]

    def _run_ctr(self, *args: str) -> str:
        if args[1] == "ls":
            return " ".join(self.left)
        if self.races:
            self.races -= 1
            self.left = self.left[:1]
            raise CommandError("ctr: cannot delete a deleted process: not found")
        self.left = []
        return ""


def forget(containerd: Containerd) -> None:
    containerd._forget(("tasks", "ls"), str.split, ("tasks", "rm"))


def test_a_task_that_containerd_deletes_at_the_same_time_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.cluster.processes.POLL_SECONDS", 0.0)
    containerd = Containerd(places(tmp_path), races=2)
    forget(containerd)
    assert containerd.left == []
    with pytest.raises(CommandError, match="cannot delete"):
        forget(Containerd(places(tmp_path), races=100))
