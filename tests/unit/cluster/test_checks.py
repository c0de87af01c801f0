"""Readiness checks against real sockets."""

import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools.cluster import checks


@contextmanager
def dns_server(address: str | None) -> Iterator[int]:
    """A server that answers one query with one address, or with "no such name"."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            query, peer = server.recvfrom(1500)
            if address is None:
                server.sendto(query[:2] + b"\x81\x83" + query[4:], peer)
                return
            record = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 5, 4) + socket.inet_aton(address)
            server.sendto(query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + query[12:] + record, peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(timeout=5)


def test_a_query_names_each_label_with_its_length() -> None:
    assert checks.dns_query("ab.c")[12:] == b"\x02ab\x01c\x00\x00\x01\x00\x01"


def test_dns_is_ready_only_with_the_right_answer() -> None:
    with dns_server("10.96.0.1") as port:
        assert checks.dns_check("127.0.0.1", "a.b", "10.96.0.1", port) is None
    with dns_server("10.96.0.2") as port:
        assert "does not answer a.b with 10.96.0.1" in str(
            checks.dns_check("127.0.0.1", "a.b", "10.96.0.1", port)
        )
    with dns_server(None) as port:
        assert "code 3" in str(checks.dns_check("127.0.0.1", "a.b", "10.96.0.1", port))


def test_a_silent_dns_server_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TIMEOUT_SECONDS", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        told = checks.dns_check("127.0.0.1", "a.b", "10.96.0.1", silent.getsockname()[1])
    assert "no answer from DNS" in str(told)


def test_a_port_that_nobody_serves_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert checks.tcp_check("127.0.0.1", port) is None
    assert f"127.0.0.1:{port}" in str(checks.tcp_check("127.0.0.1", port))


class Handler(http.server.BaseHTTPRequestHandler):
    """Healthy at /ok, otherwise as kube-apiserver's /readyz while it starts."""

    def do_GET(self) -> None:
        healthy = self.path == "/ok"
        self.send_response(200 if healthy else 500)
        self.end_headers()
        self.wfile.write(b"ok" if healthy else b"[+]ping ok\n[-]poststarthook/x failed\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        return


def test_http_is_ready_at_200_and_else_tells_the_failed_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        assert checks.http_check(f"{base}/ok") is None, "the user's proxy is not asked"
        assert checks.http_check(f"{base}/readyz") == "HTTP 500: [-]poststarthook/x failed"
        server.shutdown()
        thread.join(timeout=5)
    assert checks.http_check(f"{base}/ok") is not None
