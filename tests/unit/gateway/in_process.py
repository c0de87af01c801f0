"""The gateway without sockets: one request by ASGI, an engine that is a list of chunks.

Owns the plumbing for tests that ask thousands of times. What it cannot show (HTTP itself, broken
connections) the soak shows over real ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from structuredllm_gateway.app import create_app
from structuredllm_gateway.errors import GatewayError
from structuredllm_gateway.upstream.client import UpstreamResponse
from structuredllm_gateway.upstream.endpoints import ValidationMode
from tests.unit.gateway.support import First, capturing_log, pool_of, settings_with


class _Response:
    """An answer that arrives in these chunks, and then ends or fails."""

    status = 200

    def __init__(self, chunks: Sequence[bytes], failure: GatewayError | None, content_type: str) -> None:
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._chunks = chunks
        self._failure = failure

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        return None


class ChunksUpstream:
    """An `UpstreamClient` whose every answer is what was set last."""

    def __init__(self) -> None:
        self.chunks: Sequence[bytes] = ()
        self.failure: GatewayError | None = None
        self.content_type = "text/event-stream"

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        return _Response(self.chunks, self.failure, self.content_type)

    async def aclose(self) -> None:
        return None


def _responded(*, stream: bool) -> _Response:
    message = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
    whole = {"object": "response", "status": "completed", "output": [message]}
    if not stream:
        return _Response([json.dumps(whole).encode()], None, "application/json")
    events: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", "delta": "{}"},
        {"type": "response.completed", "response": whole},
    ]
    wire = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return _Response(wire, None, "text/event-stream")


class AnsweringUpstream(ChunksUpstream):
    """An `UpstreamClient` that answers every request with `{}`, streamed when it asks for that."""

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        asked = json.loads(body)
        part = {"content": "{}"}
        if url.endswith("/responses"):
            return _responded(stream=bool(asked.get("stream")))
        choice = {"index": 0, "message": part, "delta": part, "text": "{}", "finish_reason": "stop"}
        answer = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        if asked.get("stream"):
            return _Response([b"data: " + answer + b"\n\ndata: [DONE]\n\n"], None, "text/event-stream")
        return _Response([answer], None, "application/json")


@dataclass(frozen=True)
class Reply:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class InProcess:
    """A gateway with one replica, asked one request at a time."""

    def __init__(
        self, mode: ValidationMode = ValidationMode.ENFORCE, upstream: ChunksUpstream | None = None
    ) -> None:
        self.upstream = upstream or ChunksUpstream()
        self._lines: list[Mapping[str, Any]] = []
        self.app: FastAPI = create_app(
            settings_with(),
            upstream=self.upstream,
            endpoints=pool_of("http://engine", mode=mode),
            rng=First(),
            log=capturing_log(self._lines),
        )

    async def ask(
        self,
        body: Mapping[str, Any],
        chunks: Sequence[bytes],
        *,
        path: str = "/v1/chat/completions",
        failure: GatewayError | None = None,
    ) -> Reply:
        """Ask with `body`; the engine answers with `chunks`, and fails after them if so told."""
        self.upstream.chunks, self.upstream.failure = chunks, failure
        return await self.send("POST", path, json.dumps(body).encode())

    async def send(
        self, method: str, path: str, body: bytes, content_type: str = "application/json"
    ) -> Reply:
        """Send any request."""
        self._lines.clear()
        inbox = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            # A client that stays until it has its answer.
            await asyncio.Event().wait()
            return None

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", content_type.encode()), (b"host", b"gateway")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        await self.app(scope, receive, send)
        start, *parts = sent
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], headers, b"".join(part.get("body", b"") for part in parts))
