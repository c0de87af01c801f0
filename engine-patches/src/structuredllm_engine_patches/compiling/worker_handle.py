"""What the pool knows of one worker process."""

import contextlib
import os
import resource
import socket

from structuredllm_engine_patches.compiling import frames
from structuredllm_engine_patches.compiling.priority import give_way

SEND_TIMEOUT_SECONDS = 5.0
PAGE_BYTES = resource.getpagesize()


class WorkerHandle:
    """One worker.

    Attributes:
        id: its number; never used twice.
        connection: leads to it.
        pid: its process id; 0 until the fork server has told it.
        job_id: the job that it has, or None.
        slow: whether it runs at the lowest priority.
        jobs: how many jobs it was given.
    """

    def __init__(self, worker_id: int, connection: socket.socket, *, slow: bool) -> None:
        self.id = worker_id
        self.connection = connection
        self.pid = 0
        self.job_id: int | None = None
        self.slow = slow
        self.jobs = 0
        self._base_bytes = 0
        self._reader = frames.FrameReader()
        connection.settimeout(SEND_TIMEOUT_SECONDS)

    def began(self, pid: int) -> None:
        """Note its process id, before it has grown."""
        self.pid = pid
        self._base_bytes = resident_bytes(pid)

    def receive(self) -> list[frames.Frame]:
        """Return the answers that are complete; call it when the connection is readable.

        Raises:
            OSError: the worker ended.
            FrameError: it writes something else than answers.
        """
        data = self.connection.recv(1 << 20)
        if not data:
            raise ConnectionResetError("the worker closed its connection")
        return self._reader.feed(data)

    def grown_bytes(self) -> int:
        """Return by how much its resident memory has grown; 0 when that cannot be told."""
        return max(0, resident_bytes(self.pid) - self._base_bytes) if self.pid else 0

    def demote(self) -> None:
        """Give it the lowest priority: all of its threads, for each has its own."""
        self.slow = True
        if not self.pid:
            return
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                give_way(int(thread))


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
