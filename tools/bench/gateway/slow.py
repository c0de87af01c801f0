"""Do slow clients hurt good ones? 1,000 hostile connections beside a steady load.

Writes build/bench/gateway-slow.json. Owns the hostile clients, the good load and the comparison. The gateway
runs as a process of its own; the engine, the good and the slow clients share this one, so what the slow
clients cost here falls on the good ones' latency as well: a pass is a pass. Rounds with and without them
alternate. A slow client that is thrown out comes back at once.

Run: python -m tools.bench.gateway.slow [--connections 1000] [--rate 100] [--seconds 10] [--rounds 6]
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from tools.paths import repo_root

MODEL = "m"
LIMIT = 1.10
_ENGINE_SECONDS = 0.02
_START_SECONDS = 180.0
_ANSWER_SECONDS = 30.0
_SETTLE_SECONDS = 5.0
_DRIP_SECONDS = 1.0
_FLOOD_PARTS = 400
_PART_CHARS = 16_000
_UNREAD_BUFFER_BYTES = 4096
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def request(*, stream: bool = False) -> bytes:
    """Return a whole chat request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 1000}], "stream": stream}
    data = json.dumps(body).encode()
    return _HEAD + b"content-length: %d\r\n\r\n%s" % (len(data), data)


def _engine_answer() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    body = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whole requests after a pause; flood those that ask for a stream."""
    answer = _engine_answer()
    choice = {"index": 0, "delta": {"content": "y" * _PART_CHARS}, "finish_reason": None}
    event = b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"
    part = b"%x\r\n%s\r\n" % (len(event), event)
    # RuntimeError: uvloop's word for writing to a connection that is gone.
    with suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            body = await reader.readexactly(length)
            if b'"stream": true' in body:
                writer.write(_STREAM_HEAD)
                for _ in range(_FLOOD_PARTS):
                    writer.write(part)
                    await writer.drain()
                break
            await asyncio.sleep(_ENGINE_SECONDS if length else 0)
            writer.write(answer)
    writer.close()


async def _idle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing."""
    while not writer.is_closing():  # noqa: ASYNC110 - a closing writer tells nobody
        await asyncio.sleep(_DRIP_SECONDS)


async def _drip_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a header without an end, a few bytes at a time."""
    writer.write(_HEAD)
    await _drip(reader, writer, b"x-a: b\r\n")


async def _drip_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body that never gets whole."""
    writer.write(_HEAD + b"content-length: 100000\r\n\r\n{")
    await _drip(reader, writer, b" ")


async def _read_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask for a long stream and leave it unread."""
    writer.write(request(stream=True))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await _idle(_reader, writer)


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes) -> None:
    while not (reader.at_eof() or writer.is_closing()):
        await asyncio.sleep(_DRIP_SECONDS)
        writer.write(piece)
        await writer.drain()


_Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SLOW: dict[str, _Behaviour] = {
    "idle": _idle,
    "header": _drip_header,
    "body": _drip_body,
    "unread": _read_nothing,
}


class SlowClients:
    """A number of hostile connections, each opened again when it is thrown out."""

    def __init__(self, port: int, count: int, rng: random.Random) -> None:
        """Prepare; `start` opens them."""
        self._port = port
        self._count = count
        self._rng = rng
        self._tasks: list[asyncio.Task[None]] = []
        self.opened: Counter[str] = Counter()
        self.now = 0

    async def start(self) -> None:
        """Open all of them and wait until they are open."""
        kinds = list(SLOW)
        self._tasks = [
            asyncio.create_task(self._one(kinds[number % len(kinds)])) for number in range(self._count)
        ]
        async with asyncio.timeout(_START_SECONDS):
            while self.now < self._count * 0.95:  # noqa: ASYNC110 - counts what many tasks do
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Close all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _socket(self, kind: str) -> socket.socket:
        made = socket.socket()
        if kind == "unread":
            # Else the kernel would take megabytes for the client, and the stream would just be work.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BUFFER_BYTES)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self._port))
        except OSError:
            made.close()
            raise
        return made

    async def _one(self, kind: str) -> None:
        await asyncio.sleep(self._rng.random() * 2)
        while True:
            try:
                reader, writer = await asyncio.open_connection(sock=await self._socket(kind))
            except OSError:
                await asyncio.sleep(0.1)
                continue
            self.opened[kind] += 1
            self.now += 1
            working = asyncio.ensure_future(SLOW[kind](reader, writer))
            ended = asyncio.create_task(_until_end(reader)) if kind != "unread" else working
            try:
                await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.now -= 1
                working.cancel()
                ended.cancel()
                await asyncio.gather(working, ended, return_exceptions=True)
                writer.transport.abort()


async def _until_end(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(4096):
            pass


async def good_load(port: int, rate: float, seconds: float) -> dict[str, Any]:
    """Ask `rate` times a second by the clock; return latencies (ms) from the planned start, and failures."""
    loop = asyncio.get_running_loop()
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    latencies: list[float] = []
    failed: Counter[str] = Counter()
    data = request()

    async def one(due: float) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
                await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, IndexError) as error:
            failed[type(error).__name__] += 1
            return
        if head.startswith(b"HTTP/1.1 200"):
            latencies.append((loop.time() - due) * 1000)
            free.append((reader, writer))
        else:
            failed[head[:12].decode("latin-1")] += 1
            writer.close()

    began, tasks = loop.time(), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    for _, writer in free:
        writer.close()
    return {"latencies": sorted(latencies), "failed": dict(failed)}


@asynccontextmanager
async def _gateway(engine_port: int, log: Path) -> AsyncIterator[int]:
    """Run the gateway as a process; yield its port."""
    environment = {
        "AUTH__MODE": "open",
        "DISCOVERY__MODE": "static",
        "DISCOVERY__STATIC_ENDPOINTS": json.dumps(
            [{"model": MODEL, "url": f"http://127.0.0.1:{engine_port}", "validation": "Off"}]
        ),
        "PROBE__STATIC_GATE": "false",
        "SERVER__HOST": "127.0.0.1",
        "SERVER__PORT": "0",
        "SERVER__METRICS_PORT": "0",
        "SERVER__DRAIN_DELAY_SECONDS": "0",
    }
    named = {f"STRUCTUREDLLM_GATEWAY_{name}": value for name, value in environment.items()}
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: ASYNC220 - once, before anything is measured
            (sys.executable, "-m", "structuredllm_gateway.cli"), stdout=sink, env={**os.environ, **named}
        )
    try:
        yield await _port_of(log, process)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def _port_of(log: Path, process: "subprocess.Popen[bytes]") -> int:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            for line in log.read_text(errors="replace").splitlines():  # noqa: ASYNC240 - a few lines
                if '"serving"' in line:
                    return int(json.loads(line)["port"])
            if process.poll() is not None:
                raise SystemExit(f"the gateway did not start; see {log}")
            await asyncio.sleep(0.1)


def summarised(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over rounds, and whether the slow clients moved the good p99 by under a tenth."""
    alone = statistics.median(item["p99_ms"] for item in rounds if not item["slow"])
    beside = statistics.median(item["p99_ms"] for item in rounds if item["slow"])
    return {
        "good_p99_ms_alone": round(alone, 3),
        "good_p99_ms_beside_slow": round(beside, 3),
        "p99_ratio": round(beside / alone, 4),
        "good_failed": sum(sum(item["failed"].values()) for item in rounds),
        "passed": beside / alone < LIMIT and not any(item["failed"] for item in rounds),
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the report."""
    folder = repo_root() / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    engine = await asyncio.start_server(_engine, "127.0.0.1", 0, backlog=2048)
    rounds: list[dict[str, Any]] = []
    rng = random.Random(7)  # noqa: S311 - spreads starts, no secret
    async with _gateway(engine.sockets[0].getsockname()[1], folder / "gateway-slow.log") as port:
        await good_load(port, options.rate, 2)
        for number in range(options.rounds):
            slow = SlowClients(port, options.connections, rng) if number % 2 else None
            if slow is not None:
                await slow.start()
                # What is opened at once is work of another kind; the steady state is what is asked for.
                await asyncio.sleep(_SETTLE_SECONDS)
            found = await good_load(port, options.rate, options.seconds)
            times = found["latencies"] or [float("inf")]
            rounds.append(
                {
                    "slow": options.connections if slow is not None else 0,
                    "slow_open_at_end": slow.now if slow is not None else 0,
                    "slow_opened": dict(slow.opened) if slow is not None else {},
                    "good": len(times),
                    "failed": found["failed"],
                    "p50_ms": round(times[len(times) // 2], 3),
                    "p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))], 3),
                }
            )
            if slow is not None:
                await slow.stop()
            print(json.dumps(rounds[-1]), flush=True)
    engine.close()
    return {"rate": options.rate, "seconds": options.seconds, "rounds": rounds, "summary": summarised(rounds)}


def main() -> int:
    """Run and write the report; 1 when the slow clients were felt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: rounds without and with slow clients alternate")
    report = uvloop.run(run(options))
    target = repo_root() / "build" / "bench" / "gateway-slow.json"
    target.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["summary"]))
    return 0 if report["summary"]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
