"""The telemetry port: GET /metrics and GET /info, served by a daemon thread of the engine core process.

Standard library only. The engine core must neither die nor wait because of a scraper, so connections are
bounded in number and in time, and a port that is taken is logged, not raised: without the port nobody can
verify the topology, so the pod does not become Ready, which is the loud outcome.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_CONNECTIONS = 8
CONNECTION_TIMEOUT_SECONDS = 5.0

Page = tuple[str, Callable[[], bytes]]
"""Content type, and what returns the body."""


class TelemetryServer(ThreadingHTTPServer):
    """HTTP server of a few pages; a connection above the bound is closed at once."""

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], logger: logging.Logger) -> None:
        """Bind the port (0: any free one).

        Raises:
            OSError: the address cannot be bound.
        """
        self.pages = pages
        self._logger = logger
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def start(self) -> None:
        """Serve in a daemon thread."""
        threading.Thread(target=self.serve_forever, name="structuredllm-telemetry", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own if one is free."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the slot back when the connection ends, however it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log instead of printing a traceback to stderr."""
        self._logger.debug("telemetry connection from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: TelemetryServer
    timeout = CONNECTION_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer one of the known pages."""
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            known = " and ".join(sorted(self.server.pages))
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"try {known}\n".encode())
            return
        content_type, render = page
        self._answer(HTTPStatus.OK, content_type, render())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log no line per scrape."""


def start_server(
    host: str, port: int, pages: Mapping[str, Page], logger: logging.Logger
) -> TelemetryServer | None:
    """Start the server and return it; None when the port is off (0) or cannot be bound, which is logged."""
    if port == 0:
        logger.info("telemetry port is off (STRUCTUREDLLM_TELEMETRY_PORT=0)")
        return None
    try:
        server = TelemetryServer(host, port, pages, logger)
    except OSError as error:
        logger.error(
            "telemetry port %s:%d cannot be bound (%s): the engine runs without /metrics and /info, so the "
            "operator cannot verify it; free the port or set STRUCTUREDLLM_TELEMETRY_PORT",
            host,
            port,
            error,
        )
        return None
    server.start()
    return server
