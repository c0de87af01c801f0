"""Several processes on one port: what a worker is told by the process that started it.

Owns a worker's place (its number, the shared port, the folder in which the processes of a pod meet). Each
worker has a socket of its own on the port (SO_REUSEPORT), so the kernel spreads new connections over them.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

PLACE_VARIABLE = "STRUCTUREDLLM_GATEWAY_WORKER"
_BACKLOG = 2048


def listening_socket(host: str, port: int, *, listen: bool = True) -> socket.socket:
    """Return a socket on a port that further sockets may share.

    Raises:
        OSError: the port is taken by others, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
        if listen:
            made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


@dataclass(frozen=True)
class WorkerPlace:
    """Where one worker stands: `number` from 0, the API's address, the folder shared by the workers."""

    number: int
    host: str
    port: int
    folder: Path

    def api_socket(self) -> socket.socket:
        """Return this worker's own socket on the shared port."""
        return listening_socket(self.host, self.port)

    @property
    def metrics_path(self) -> Path:
        """The unix socket on which the worker answers /metrics."""
        return self.folder / f"metrics-{self.number}.sock"

    def as_variable(self) -> str:
        """Return the value of `PLACE_VARIABLE` for the worker."""
        return f"{self.number};{self.host};{self.port};{self.folder}"

    @classmethod
    def of_variable(cls, value: str) -> WorkerPlace:
        """Read what `as_variable` wrote.

        Raises:
            ValueError: it did not.
        """
        number, host, port, folder = value.split(";", 3)
        return cls(int(number), host, int(port), Path(folder))
