"""A fake Hugging Face hub over a real socket: revisions, files by range, tokens, and their troubles.

Owns the server. It must not import any product package. The wire form was read in huggingface_hub.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """A hub with one repository; change the fields while it runs.

    Attributes:
        repo: its name.
        files: path -> content; those above 100 bytes count as LFS files.
        revisions: names that stand for COMMIT.
        token: when set, requests need it.
        gated: refuse whoever asks, as for terms that were not accepted.
        cut_after: bytes of a body after which the connection is closed, once per entry.
        wrong: paths whose content is sent with a wrong byte, once per entry.
        busy: how many requests get HTTP 503 first.
        ignores_ranges: send every file from its start.
        asked: (path, Range header) of every request for a file.
        host: address to listen on.
    """

    repo: str = "org/model"
    files: dict[str, bytes] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main",)
    token: str = ""
    gated: bool = False
    cut_after: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    busy: int = 0
    ignores_ranges: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    host: str = "127.0.0.1"

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
                return

        self._server = ThreadingHTTPServer((self.host, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{self.host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        path = unquote(urlsplit(request.path).path)
        if self.busy:
            self.busy -= 1
            return refuse(request, 503, "", "busy")
        if self.gated:
            return refuse(request, 403, "GatedRepo", f"Access to model {self.repo} is restricted")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return refuse(request, 401, "RepoNotFound", "Invalid username or password.")
        api, content = f"/api/models/{self.repo}/revision/", f"/{self.repo}/resolve/"
        if path.startswith(api):
            return self._revision(request, path.removeprefix(api))
        if path.startswith(content):
            revision, _, name = path.removeprefix(content).partition("/")
            if revision == COMMIT and name in self.files:
                return self._file(request, name)
            return refuse(request, 404, "EntryNotFound", "Entry not found")
        return refuse(request, 404, "RepoNotFound", "Repository not found")

    def _revision(self, request: BaseHTTPRequestHandler, revision: str) -> None:
        if revision not in (*self.revisions, COMMIT):
            return refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        body = {"id": self.repo, "sha": COMMIT, "siblings": [sibling(*one) for one in self.files.items()]}
        return send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, request: BaseHTTPRequestHandler, name: str) -> None:
        body, span = self.files[name], request.headers.get("Range", "")
        self.asked.append((name, span))
        if name in self.wrong:
            self.wrong.remove(name)
            body = bytes([body[0] ^ 1]) + body[1:]
        start = 0 if self.ignores_ranges or not span else int(span.removeprefix("bytes=").rstrip("-"))
        if span and start >= len(body):
            return refuse(request, 416, "", "range")
        limit = self.cut_after.pop(0) if self.cut_after else None
        return send(request, 206 if start else 200, body[start:], {}, limit)


def sibling(path: str, content: bytes) -> dict[str, Any]:
    """Return a file's entry in the answer about a revision."""
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 (git's name of a blob)
    entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": blob}
    if len(content) > 100:
        entry["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return entry


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str],
    limit: int | None = None,
) -> None:
    """Send a whole answer, or cut it after `limit` bytes of the body."""
    request.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body if limit is None else body[:limit])
    request.close_connection = True


def refuse(request: BaseHTTPRequestHandler, status: int, code: str, words: str) -> None:
    """Refuse as the hub does: the cause is in headers."""
    send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": words})
