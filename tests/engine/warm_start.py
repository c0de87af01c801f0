"""Engines that are forked from a process which has vLLM imported already (`scripts/warm_server.py`).

For engines that differ from one another by arguments and settings only: what must be another program (another
environment, spawned processes, a pretended version) is started the usual way.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tools.paths import repo_root

READY_SECONDS = 300.0
REPLY_SECONDS = 30.0
SCRIPT = Path("tests/engine/scripts/warm_server.py")


class Process(Protocol):
    """What tests need of a process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its id, and that of its session and process group."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status as of the last look, negative for a signal; None while it runs."""
        ...

    def poll(self) -> int | None:
        """Look, and return `returncode`."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""
        ...


class WarmServer:
    """One process with vLLM imported, and the ends of the engines that it forked."""

    def __init__(self, environment: Path, env: Mapping[str, str], log: Path) -> None:
        """Start it and wait until it has imported all.

        Args:
            environment: what `tools.engine_env` built.
            env: of the imports; an engine gets its own.
            log: what the process itself says.

        Raises:
            RuntimeError: it ended, or did not get ready.
        """
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as output:
            self._server = subprocess.Popen(
                [str(environment / "bin" / "python"), str(repo_root() / SCRIPT)],
                env=dict(env), stdin=theirs.fileno(), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._socket = ours
        self._pending = b""
        self._ended: dict[int, int] = {}
        if self._receive(READY_SECONDS) != {"ready": True}:
            raise RuntimeError(
                f"vLLM could not be imported; {log}:\n{log.read_text(errors='replace')[-2000:]}"
            )

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> "WarmProcess":
        """Run `vllm` with these arguments, in a session of its own."""
        log.write_bytes(b"")
        order = {"argv": list(argv), "env": dict(env), "log": str(log)}
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        deadline = time.monotonic() + REPLY_SECONDS
        while time.monotonic() < deadline:
            message = self._receive(deadline - time.monotonic())
            if "started" in message:
                return WarmProcess(self, message["started"])
        raise RuntimeError("the process that engines are forked from does not answer")

    def status_of(self, pid: int) -> int | None:
        """Return the exit status of an engine, None while it runs."""
        while pid not in self._ended and select.select([self._socket], [], [], 0)[0]:
            self._receive(REPLY_SECONDS)
        return self._ended.get(pid)

    def close(self) -> None:
        """End it; engines that still run are killed."""
        self._socket.close()
        self._server.wait(REPLY_SECONDS)

    def _receive(self, seconds: float) -> dict[str, int]:
        """Return the next message, after noting it if it tells of an end.

        Raises:
            RuntimeError: the process is gone or silent.
        """
        self._socket.settimeout(max(0.01, seconds))
        while b"\n" not in self._pending:
            received = self._socket.recv(1 << 16)
            if not received:
                raise RuntimeError(f"the process that engines are forked from ended: {self._server.wait(5)}")
            self._pending += received
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, int] = json.loads(line)
        if "ended" in message:
            self._ended[message["ended"]] = message["status"]
        return message


class WarmProcess:
    """An engine forked by a `WarmServer`; see `Process`."""

    def __init__(self, server: WarmServer, pid: int) -> None:
        """Take the process."""
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """See `Process.poll`."""
        if self.returncode is None:
            self.returncode = self._server.status_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See `Process.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"engine {self.pid}", timeout or 0)
            time.sleep(0.05)
        return code

    def send_signal(self, sig: int) -> None:
        """See `Process.send_signal`."""
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(sig))


_servers: dict[Path, WarmServer] = {}


def warm_server(environment: Path, env: Mapping[str, str], log: Path) -> WarmServer:
    """Return the server of an environment; it lives as long as this process."""
    if environment not in _servers:
        _servers[environment] = server = WarmServer(environment, env, log)
        atexit.register(server.close)
    return _servers[environment]
