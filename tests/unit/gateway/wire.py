"""What engines send, byte for byte: answers of every route, streams, and a server that sends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from structuredllm_gateway.settings import Settings
from structuredllm_gateway.upstream.endpoints import ValidationMode
from tests.unit.gateway.support import Running, gateway, pool_of

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Raw:
    """An answer with a status of its own; `body` None = nothing is ever answered."""

    status: int
    body: bytes | None


def chat(text: str | None, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    """Return a whole chat completion."""
    about = {"role": "assistant", "content": text, **fields}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": about, "finish_reason": finish}]}


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """Return one event of a chat stream."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def call(arguments: str, name: str | None = None, index: int = 0) -> dict[str, Any]:
    """Return the fields of a delta (or message) with a part of a call."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    first = {} if name is None else {"id": "call-1", "type": "function"}
    return {"tool_calls": [{"index": index, **first, "function": function}]}


def message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def response(*output: Mapping[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    about = {"id": "r", "object": "response", "created_at": 0, "model": "toy", "error": None, "tools": []}
    choice = {"tool_choice": "auto", "parallel_tool_calls": True}
    return {**about, **choice, "output": list(output), "status": status, **more}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def event_stream(pieces: Sequence[str], last: Mapping[str, Any] | None) -> list[bytes]:
    """Return the events that vLLM sends for one message."""
    started = response(status="in_progress")
    events = [
        event("response.created", response=started, sequence_number=0),
        event("response.in_progress", response=started, sequence_number=1),
        event("response.output_item.added", item={"type": "message", "id": "m"}, output_index=0),
    ]
    events += [
        event("response.output_text.delta", delta=piece, output_index=0, content_index=0, item_id="m")
        for piece in pieces
    ]
    if last is not None:
        events.append(event("response.completed", response=last, sequence_number=9))
    return events


class Engine:
    """Answers every request with the next of the given answers (the last for ever); keeps what it got."""

    def __init__(self, *answers: Mapping[str, Any] | list[bytes] | Raw, pause_seconds: float = 0.0) -> None:
        self.answers = list(answers)
        self.pause_seconds = pause_seconds
        self.got: list[tuple[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.path, json.loads(await request.read())))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Raw):
            if answer.body is None:
                await asyncio.Event().wait()
            return web.Response(status=answer.status, body=answer.body, content_type="application/json")
        if not isinstance(answer, list):
            return web.json_response(answer)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in answer:
            await response.write(part)
            await asyncio.sleep(self.pause_seconds)
        return response


@asynccontextmanager
async def serving(
    *engines: Engine, mode: ValidationMode = ValidationMode.ENFORCE, settings: Settings | None = None
) -> AsyncIterator[Running]:
    """Run a gateway before engines."""
    runners = []
    for engine in engines:
        app = web.Application()
        app.router.add_post("/{path:.*}", engine.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    try:
        async with gateway(pool_of(*(engine.url for engine in engines), mode=mode), settings) as run:
            yield run
    finally:
        for runner in runners:
            await runner.cleanup()
