"""Load on one gateway, in a process of its own; prints one JSON object.

`python -m tools.bench.gateway.load JOB` where JOB is a JSON object with `port`, `kind` and the kind's own
fields:

    one      `requests`: one after the other on one connection; latencies
    closed   `requests`, `connections`: as fast as the answers come
    rate     `rate` a second for `seconds` over `connections`, started by the clock and not by the answers,
             latencies from the planned start (no coordinated omission)
    streams  `streams` at once for `seconds`: time to the first part, gaps, parts that are missing
"""

import asyncio
import json
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import uvloop

PROPERTIES = {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["name", "age", "tags"]}
KEY = "bench-0123456789abcdef0123456789"
_EVENT = b"data: {"


def request_bytes(*, stream: bool) -> bytes:
    """Return a chat request of about 1.1 kB that asks for a JSON schema."""
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "extract a person " * 40}],
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
    }
    if stream:
        body["stream"] = True
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Connection(asyncio.Protocol):
    """One client connection: one request at a time, told when its answer is whole."""

    def __init__(self) -> None:
        """Start idle."""
        self.on_whole: Callable[[Connection], None] = lambda _: None
        self.on_part: Callable[[Connection, bytes], None] | None = None
        self.failed = ""
        self.closed = False
        self.began = 0.0
        self._held = b""
        self._need: int | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the gateway has closed."""
        self.closed = True
        if self.began:
            self._end("closed")

    def ask(self, request: bytes, began: float) -> None:
        """Send one request; `began` is the time from which it counts."""
        self.began, self._held, self._need, self._head, self.failed = began, b"", None, b"", ""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Look for the end of the answer."""
        if self.on_part is not None:
            self.on_part(self, data)
        if not self._head:
            self._held += data
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head, data = self._held[:end].lower(), self._held[end + 4 :]
            self._held = b""
            at = self._head.find(b"content-length:")
            self._need = int(self._head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else None
        if self._need is not None:
            self._need -= len(data)
            if self._need > 0:
                return
        else:
            self._held = (self._held + data)[-8:]
            if not self._held.endswith(b"0\r\n\r\n"):
                return
        status = self._head.split(b" ", 2)[1]
        self._end("" if status == b"200" else f"status {status.decode()}")

    def _end(self, failed: str) -> None:
        self.failed, self.began_at, self.began = failed, self.began, 0.0
        self.on_whole(self)


async def connect(port: int) -> Connection:
    """Open one connection."""
    _, made = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return made


def percentiles(values: "array[float]") -> dict[str, float]:
    """Return p50, p90, p99, p999 and the largest, in microseconds."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6, 1)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
    }
    return {**found, "max": round(ordered[-1] * 1e6, 1)}


async def closed(port: int, requests: int, connections: int) -> dict[str, Any]:
    """Ask `requests` times over `connections`, each as soon as its answer is there."""
    request, taken, failures = request_bytes(stream=False), array("d"), list[str]()
    left, done = requests, asyncio.get_running_loop().create_future()

    def again(connection: Connection) -> None:
        nonlocal left
        now = time.perf_counter()
        if connection.failed:
            failures.append(connection.failed)
        else:
            taken.append(now - connection.began_at)
        if left > 0 and not connection.closed:
            left -= 1
            connection.ask(request, now)
        elif (len(taken) + len(failures) >= requests or connection.closed) and not done.done():
            done.set_result(None)

    made = [await connect(port) for _ in range(connections)]
    began = time.perf_counter()
    for connection in made:
        connection.on_whole = again
        left -= 1
        connection.ask(request, time.perf_counter())
    await done
    seconds = time.perf_counter() - began
    for connection in made:
        connection.on_whole = lambda _: None
        connection.transport.abort()
    return {**_result(taken, failures), "per_second": round(len(taken) / seconds, 1)}


async def rate(port: int, rate: float, seconds: float, connections: int) -> dict[str, Any]:
    """Start `rate` requests a second by the clock; those for which no connection is free wait and count."""
    request, taken, failures = request_bytes(stream=False), array("d"), list[str]()
    free = deque([await connect(port) for _ in range(connections)])
    made, waiting = list(free), deque[float]()

    def whole(connection: Connection) -> None:
        now = time.perf_counter()
        if connection.failed:
            failures.append(connection.failed)
        else:
            taken.append(now - connection.began_at)
        if connection.closed:
            return
        if waiting:
            connection.ask(request, waiting.popleft())
        else:
            free.append(connection)

    for connection in made:
        connection.on_whole = whole
    count, began, sent = int(rate * seconds), time.perf_counter() + 0.05, 0
    while sent < count:
        # About every millisecond: all that are due, from their own planned times.
        await asyncio.sleep(0.0005)
        due = min(count, int((time.perf_counter() - began) * rate) + 1)
        while sent < due:
            planned = began + sent / rate
            sent += 1
            if free:
                free.popleft().ask(request, planned)
            else:
                waiting.append(planned)
    grace = time.perf_counter() + 2.0
    while len(taken) + len(failures) < count and time.perf_counter() < grace:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    lost = count - len(taken) - len(failures)
    for connection in made:
        connection.on_whole = lambda _: None
        connection.transport.abort()
    return {**_result(taken, failures), "unanswered": lost, "rate": rate}


async def streams(port: int, streams: int, seconds: float, frames: int, pace: float) -> dict[str, Any]:
    """Hold `streams` streams at once, begun evenly over one stream's length; each is followed by another."""
    request, failures = request_bytes(stream=True), list[str]()
    firsts, gaps, seen = array("d"), array("d"), dict[Connection, list[float]]()
    lost = finished = 0
    ending = time.perf_counter() + seconds

    def part(connection: Connection, data: bytes) -> None:
        now, count = time.perf_counter(), data.count(_EVENT)
        state = seen[connection]
        if count:
            if state[0]:
                gaps.append(now - state[1])
            else:
                firsts.append(now - connection.began)
            state[0] += count
            state[1] = now

    def whole(connection: Connection) -> None:
        nonlocal lost, finished
        if connection.failed:
            failures.append(connection.failed)
        else:
            finished += 1
            lost += frames - int(seen[connection][0])
        if not connection.closed and time.perf_counter() < ending:
            seen[connection] = [0, 0.0]
            connection.ask(request, time.perf_counter())

    made = []
    length = frames * pace
    chance = random.Random(1)  # noqa: S311 - spreads starts
    for _ in range(streams):
        connection = await connect(port)
        connection.on_part, connection.on_whole = part, whole
        seen[connection] = [0, 0.0]
        made.append(connection)
        await asyncio.sleep(length / streams * (0.5 + chance.random()))
        connection.ask(request, time.perf_counter())
    await asyncio.sleep(max(0.0, ending - time.perf_counter()) + length + 0.5)
    open_still = sum(1 for connection in made if connection.began)
    for connection in made:
        connection.on_whole = lambda _: None
        connection.transport.abort()
    return {
        "first": percentiles(firsts),
        "gap": percentiles(gaps),
        "stalls": sum(gap > 10 * pace for gap in gaps),
        "finished": finished,
        "unfinished": open_still,
        "lost_frames": lost,
        "failures": len(failures),
        "failed": failures[:3],
    }


def _result(taken: "array[float]", failures: list[str]) -> dict[str, Any]:
    return {"answers": len(taken), "failures": len(failures), "failed": failures[:3], **percentiles(taken)}


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job."""
    kind = job.pop("kind")
    if kind == "one":
        return await closed(job["port"], job["requests"], 1)
    work: dict[str, Callable[..., Any]] = {"closed": closed, "rate": rate, "streams": streams}
    result: dict[str, Any] = await work[kind](**job)
    return result


if __name__ == "__main__":
    json.dump(uvloop.run(run(json.loads(sys.argv[1]))), sys.stdout)
