"""How far a download is: counters for its threads, and a small HTTP server that tells the operator.

Owns the wire form of GET /progress. It must not know hub or files.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Phase(StrEnum):
    """What a download does now."""

    STARTING = "Starting"
    WAITING = "Waiting"
    RESOLVING = "Resolving"
    DOWNLOADING = "Downloading"


class Progress:
    """Counters, safe to change from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._bytes = 0
        self._total = 0

    def enter(self, phase: Phase) -> None:
        """Say what is done now."""
        with self._lock:
            self._phase = phase

    def start(self, *, done: int, total: int) -> None:
        """Say how many bytes there are, and how many were there already."""
        with self._lock:
            self._phase, self._bytes, self._total = Phase.DOWNLOADING, done, total

    def add(self, count: int) -> None:
        """Count bytes; negative when some have to be fetched again."""
        with self._lock:
            self._bytes += count

    def snapshot(self) -> dict[str, Any]:
        """Return the answer of GET /progress."""
        with self._lock:
            return {"phase": self._phase.value, "bytes": self._bytes, "totalBytes": self._total}


@contextmanager
def served(progress: Progress, port: int) -> Iterator[int]:
    """Answer GET /progress on all addresses while the block runs; yields the port.

    A port that is taken does not stop a download: the operator then knows less, no more.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            found = self.path == "/progress"
            body = json.dumps(progress.snapshot()).encode() if found else b"{}"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

        def server_bind(self) -> None:
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    server: Server | None = None
    with suppress(OSError):
        server = Server(("", port), Handler)
    if server is None:
        yield 0
        return
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
