"""How a fake engine replies on the wire: error replies, cut connections, streamed answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.fakes import answers
from tests.fakes.modes import FakeScript, Mode


@dataclass(frozen=True)
class StreamedAnswer:
    """One answer to send as server-sent events.

    Attributes:
        chat: chat chunks, else text completion chunks.
        text: the whole content; it is cut into pieces of `FakeScript.chunk_chars` characters.
        usage: send a last chunk with token counts.
        rejected: end with the grammar reject instead of the answer.
    """

    chat: bool
    ident: str
    model: str
    text: str
    finish: str
    choices: int
    usage: bool
    rejected: bool

    async def send(self, request: web.Request, script: FakeScript, mode: Mode) -> web.StreamResponse:
        """Send the events; ends early in the modes HANG_MID_STREAM and DEAD_MID_STREAM."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.chat:
            for index in range(self.choices):
                await _event(response, self._chunk(index, {"role": "assistant", "content": ""}))
        limit = script.reject_after_chars if self.rejected else len(self.text)
        for index in range(self.choices):
            for start in range(0, limit, script.chunk_chars):
                piece = self.text[start : min(start + script.chunk_chars, limit)]
                await _event(response, self._chunk(index, {"content": piece}))
                if mode is Mode.HANG_MID_STREAM:
                    await forever()
                if mode is Mode.DEAD_MID_STREAM:
                    close(request)
                    return response
                if script.chunk_delay_seconds:
                    await asyncio.sleep(script.chunk_delay_seconds)
            if not self.rejected:
                await _event(response, self._chunk(index, {}, self.finish))
        if self.rejected:
            await _event(response, answers.reject_body(script))
        elif self.usage:
            await _event(response, {**self._chunk(0, {}), "choices": [], "usage": answers.usage(self.text)})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        return answers.chunk(
            chat=self.chat, ident=self.ident, model=self.model, index=index, delta=delta, finish=finish
        )


async def _event(response: web.StreamResponse, payload: Mapping[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(payload).encode() + b"\n\n")


def bad_request(message: str) -> web.Response:
    """Return HTTP 400 in OpenAI's shape."""
    return web.json_response(answers.error_body(message, "BadRequestError", 400), status=400)


def unauthorized() -> web.Response:
    """Return HTTP 401 in OpenAI's shape."""
    return web.json_response(answers.error_body("Unauthorized", "AuthenticationError", 401), status=401)


def close(request: web.Request) -> web.Response:
    """Cut the connection without a further byte; the response returned is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()
