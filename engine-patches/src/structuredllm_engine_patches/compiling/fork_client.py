"""The pool's side of one fork server: start it, ask it for workers, hear of their ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from structuredllm_engine_patches.compiling import frames

SEND_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 2.0
MODULE = "structuredllm_engine_patches.compiling.fork_server"


@dataclass(frozen=True)
class ServerOptions:
    """What a fork server is started with.

    Attributes:
        load: `module:function`, see `fork_server.Load`.
        memory_bytes: memory that a worker may take on top of what it starts with.
        max_result_bytes: bound of a result.
    """

    load: str = "structuredllm_engine_patches.compiling.xgrammar_jobs:load"
    memory_bytes: int = 1 << 30
    max_result_bytes: int = 1 << 28

    def arguments(self, control_fd: int) -> Sequence[str]:
        """Return the command's arguments."""
        return (
            "--control-fd", str(control_fd), "--load", self.load,
            "--memory-bytes", str(self.memory_bytes), "--max-result-bytes", str(self.max_result_bytes),
        )  # fmt: skip


class ServerLostError(ConnectionError):
    """The fork server ended or does not take messages."""


class ForkClient:
    """One running fork server. Not thread-safe; used by the pool's thread.

    Raises (every method):
        ServerLostError: it is gone.
    """

    def __init__(self, options: ServerOptions) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_TIMEOUT_SECONDS)
        # One thread only (forking is safe then), and few allocator arenas (each reserves address space).
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment["MALLOC_ARENA_MAX"] = "2"
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", MODULE, *options.arguments(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._control = ours
        self._reader = frames.FrameReader()

    @property
    def pid(self) -> int:
        """Return the process id of the fork server."""
        return self._process.pid

    def fileno(self) -> int:
        """Return what to wait on before `events`."""
        return self._control.fileno()

    def load(self, blob: bytes) -> None:
        """Give it what the compiler needs; the event `loaded` says when workers can be had."""
        self._send({"op": "load"}, blob)

    def fork(self, worker_id: int, *, slow: bool) -> socket.socket:
        """Ask for a worker and return the socket that leads to it; jobs can be sent at once."""
        ours, theirs = socket.socketpair()
        try:
            message = frames.encode({"op": "fork", "worker": worker_id, "slow": slow})
            sent = socket.send_fds(self._control, [message], [theirs.fileno()])
            if sent < len(message):
                self._control.sendall(message[sent:])
        except OSError as error:
            ours.close()
            raise ServerLostError(f"the compile fork server takes no message: {error}") from error
        finally:
            theirs.close()
        return ours

    def kill(self, worker_id: int) -> None:
        """Kill a worker; the fork server does it, so that the process id is surely still the worker's."""
        self._send({"op": "kill", "worker": worker_id})

    def events(self) -> list[dict[str, Any]]:
        """Return the messages that came; call it when `fileno` is readable."""
        try:
            data = self._control.recv(1 << 16)
        except OSError as error:
            raise ServerLostError(f"the compile fork server is gone: {error}") from error
        if not data:
            raise ServerLostError(f"the compile fork server ended (exit code {self._process.poll()})")
        return [header for header, _ in self._reader.feed(data)]

    def close(self) -> None:
        """End the fork server and with it all workers; never waits for long."""
        self._control.close()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_SECONDS)

    def _send(self, header: dict[str, Any], blob: bytes = b"") -> None:
        try:
            self._control.sendall(frames.encode(header, blob))
        except OSError as error:
            raise ServerLostError(f"the compile fork server takes no message: {error}") from error
