"""One request and its answer over HTTP: sends, reads a bounded body, turns it into an `Answer`.

Owns the reading of both answer forms (one body, server-sent events). It classifies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from structuredllm_probe.classify import Answer, Failure
from structuredllm_probe.errors import SseError
from structuredllm_probe.plan import PlannedRequest
from structuredllm_probe.sse import SseParser

MAX_ANSWER_BYTES = 1024 * 1024
_HEADERS = {"Accept-Encoding": "identity"}  # a compressed body could unpack to any size


class _BrokenAnswerError(Exception):
    """The response head came, but what follows is no usable answer."""


@dataclass
class Exchange:
    """One request in progress; `late_answer` tells what there is when the time is over."""

    request: PlannedRequest
    _status: int | None = None
    _text: list[str] = field(default_factory=list)
    _finish_reason: str | None = None
    _error: Mapping[str, Any] | None = None

    async def run(self, client: httpx.AsyncClient, url: str, limits: httpx.Timeout) -> Answer:
        """Send the request to `url` and read the whole answer. HTTP trouble ends in the answer's fields."""
        failure: Failure | None = None
        detail = ""
        try:
            async with client.stream(
                "POST", url, json=dict(self.request.body), headers=_HEADERS, timeout=limits
            ) as response:
                self._status = response.status_code
                await self._read(response)
        except (httpx.HTTPError, SseError, _BrokenAnswerError) as error:
            failure = Failure.CONNECT if self._status is None else Failure.BROKEN
            detail = f"{type(error).__name__}: {error}" if isinstance(error, httpx.HTTPError) else str(error)
        return Answer(
            self._status,
            "".join(self._text),
            self._finish_reason,
            self._error,
            failure=failure,
            detail=detail,
        )

    def late_answer(self) -> Answer:
        """Return the answer of a request that was cancelled because the time is over."""
        received = sum(len(part) for part in self._text)
        detail = f"no whole answer in time, {received} characters had arrived"
        return Answer(self._status, failure=Failure.TIMEOUT, detail=detail)

    async def _read(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            self._error = _error_of(await _bounded_body(response))
        elif self.request.streamed:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise _BrokenAnswerError(f"asked for a stream, got content type {kind!r}")
            await self._read_stream(response)
        else:
            self._take_whole(await _bounded_body(response))

    async def _read_stream(self, response: httpx.Response) -> None:
        parser, size = SseParser(MAX_ANSWER_BYTES), 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise _BrokenAnswerError(f"the stream is longer than {MAX_ANSWER_BYTES} bytes")
            for data in parser.feed(part):
                if data.strip() == "[DONE]":
                    return
                self._take_event(data)
        raise _BrokenAnswerError("the stream ended without data: [DONE]")

    def _take_event(self, data: str) -> None:
        event = _object(data, "a stream event")
        if event.get("error") is not None:
            self._error = _as_error(event["error"])
            return
        choice = _first_choice(event)
        if choice is None:  # usage chunks have no choices
            return
        delta = choice.get("delta")
        self._append(delta.get("content") if isinstance(delta, Mapping) else None)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _take_whole(self, body: bytes) -> None:
        answer = _object(body.decode("utf-8", errors="replace"), "the body")
        if answer.get("error") is not None:
            self._error = _as_error(answer["error"])
            return
        choice = _first_choice(answer)
        message = None if choice is None else choice.get("message")
        if choice is None or not isinstance(message, Mapping):
            raise _BrokenAnswerError("the body has no choices[0].message")
        self._append(message.get("content"))
        self._finish_reason = choice.get("finish_reason")

    def _append(self, content: Any) -> None:
        if isinstance(content, str):
            self._text.append(content)


async def _bounded_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise _BrokenAnswerError(f"the body is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _object(text: str, what: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BrokenAnswerError(f"{what} is not JSON: {text[:80]!r}") from error
    if not isinstance(value, Mapping):
        raise _BrokenAnswerError(f"{what} is not a JSON object: {text[:80]!r}")
    return value


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return None
    first: Mapping[str, Any] = choices[0]
    return first


def _error_of(body: bytes) -> Mapping[str, Any]:
    text = body.decode("utf-8", errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"message": text}
    inner = value.get("error", value) if isinstance(value, Mapping) else text
    return _as_error(inner)


def _as_error(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"message": str(value)}
