"""What a gateway's processes use: CPU time and memory from /proc, cores they may run on.

Owns reading /proc. CPU time is the scheduler's own (nanoseconds), not the clock ticks of `stat`.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.gateway.errors import BenchError

_PROC = Path("/proc")
_STOP_SECONDS = 5.0


class Running:
    """A process group that was started on given cores."""

    def __init__(
        self, command: Sequence[str], *, cores: Sequence[int], environment: Mapping[str, str], log: Path
    ) -> None:
        """Start it; its output goes to `log`."""
        self.log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, cores)), *command],
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pids(self) -> list[int]:
        """The process and its descendants."""
        parents: dict[int, int] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    @property
    def alive(self) -> bool:
        """Whether the first process still runs."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads until now."""
        total = 0
        for pid in self.pids:
            for task in _glob(_PROC / str(pid) / "task"):
                try:
                    total += int((task / "schedstat").read_text().split()[0])
                except (OSError, IndexError, ValueError):
                    continue
        return total / 1e9

    def rss_mib(self) -> float:
        """Return the resident memory of all its processes."""
        total = 0
        for pid in self.pids:
            try:
                lines = (_PROC / str(pid) / "status").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
        return total / 1024

    def stop(self) -> None:
        """End it, with its descendants."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive:
                return
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def tail(self) -> str:
        """Return the end of what it said."""
        return self.log.read_text(errors="replace")[-600:]


def check_machine() -> list[int]:
    """Return the cores that may be used.

    Raises:
        BenchError: not Linux, or only one core: gateway and load would share it.
    """
    if not (_PROC / "self" / "schedstat").exists():
        raise BenchError("this machine has no /proc/*/schedstat, which CPU time is read from")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError("two cores are needed: one for the gateways, one for the load")
    return cores


def _glob(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
