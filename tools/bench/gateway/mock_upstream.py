"""An engine that costs nearly nothing: fixed answers, a delay, paced streams. A process of its own.

`python -m tools.bench.gateway.mock_upstream PORT`. A `POST /control` with delay, frames and pace (seconds)
changes what follows. Streams are written by one ticker in phases of a millisecond, so that they neither cost
a timer each nor come all at once.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

_ANSWER = json.dumps({"name": "Ada", "age": 36, "tags": ["x"] * 20})
_MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "x", "max_model_len": 4096}]}
_TICK_SECONDS = 0.001
_CHUNK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole_answer() -> bytes:
    """Return a chat completion whose text satisfies the requests' schema."""
    choice = {"index": 0, "message": {"role": "assistant", "content": _ANSWER}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps({**body, "usage": usage}).encode()


def frames(count: int) -> list[bytes]:
    """Return the events of a stream of `count` parts, its text cut evenly, and the end mark."""
    cuts = [len(_ANSWER) * number // count for number in range(count + 1)]
    events = []
    for number in range(count):
        choice = {
            "index": 0,
            "delta": {"content": _ANSWER[cuts[number] : cuts[number + 1]]},
            "finish_reason": "stop" if number == count - 1 else None,
        }
        body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        events.append(b"data: " + json.dumps(body).encode() + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


def _response(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


class State:
    """What the engine does now; shared by all connections."""

    def __init__(self) -> None:
        """Answer at once; streams of 64 parts, one every 20 ms."""
        self.delay = 0.0
        self.pace = 0.02
        self.answer = _response(whole_answer())
        self.models = _response(json.dumps(_MODELS).encode())
        self.set_frames(64)
        self.slots: list[set[_Stream]] = []
        self._number = 0
        self.set_pace(0.02)

    def set_frames(self, count: int) -> None:
        """Use streams of `count` parts."""
        parts = [b"%x\r\n" % len(event) + event + b"\r\n" for event in frames(count)]
        self.frames = [*parts[:-2], parts[-2] + parts[-1] + b"0\r\n\r\n"]

    def set_pace(self, seconds: float) -> None:
        """Use `seconds` between two parts."""
        self.pace = seconds
        self.slots = [set() for _ in range(max(1, round(seconds / _TICK_SECONDS)))]

    async def tick(self) -> None:
        """Write the parts that are due, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += _TICK_SECONDS
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._number += 1
            slot = self.slots[self._number % len(self.slots)]
            for stream in list(slot):
                if not stream.step():
                    slot.discard(stream)

    def begin(self, transport: asyncio.Transport) -> None:
        """Start a stream; its first part goes out at once."""
        stream = _Stream(self.frames, transport)
        # The slot that comes up last: one pace after the first part.
        self.slots[self._number % len(self.slots)].add(stream)


class _Stream:
    def __init__(self, parts: list[bytes], transport: asyncio.Transport) -> None:
        self._parts: Iterator[bytes] = iter(parts)
        self._transport = transport
        transport.write(_CHUNK_HEAD + next(self._parts))

    def step(self) -> bool:
        part = next(self._parts, None)
        if part is None or self._transport.is_closing():
            return False
        self._transport.write(part)
        return True


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, state: State) -> None:
        """Start with nothing read."""
        self._state = state
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        held = self._held + data
        while True:
            end = held.find(b"\r\n\r\n")
            if end < 0:
                break
            head = held[:end].lower()
            if b"transfer-encoding: chunked" in head:
                close = held.find(b"0\r\n\r\n", end + 4)
                if close < 0:
                    break
                body, held = held[end + 4 : close], held[close + 5 :]
            else:
                at = head.find(b"content-length:")
                length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
                if len(held) < end + 4 + length:
                    break
                body, held = held[end + 4 : end + 4 + length], held[end + 4 + length :]
            self._answer(head, body)
        self._held = held

    def _answer(self, head: bytes, body: bytes) -> None:
        state = self._state
        target = head.split(b" ", 2)[1]
        if target.endswith(b"/control"):
            wanted = json.loads(body)
            state.delay = wanted.get("delay", state.delay)
            state.set_frames(wanted.get("frames", len(state.frames)))
            state.set_pace(wanted.get("pace", state.pace))
            self._transport.write(_response(b"{}"))
        elif target.endswith(b"completions"):
            if b'"stream":true' in body.replace(b" ", b""):
                state.begin(self._transport)
            elif state.delay:
                asyncio.get_running_loop().call_later(state.delay, self._transport.write, state.answer)
            else:
                self._transport.write(state.answer)
        else:
            self._transport.write(state.models if b"models" in target else _response(b"{}"))


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    state = State()
    server = await asyncio.get_running_loop().create_server(
        lambda: Engine(state), "127.0.0.1", port, backlog=2048
    )
    ticking = asyncio.create_task(state.tick())
    await server.serve_forever()
    await ticking


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
