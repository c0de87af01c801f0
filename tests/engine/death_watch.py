"""Do something deadly to a running engine and watch what its clients, its health and its processes do."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.engine.engine_process import MODEL_NAME, Engine

CLIENTS = 6
WATCH_SECONDS = 60.0
REQUEST_SECONDS = 50.0


@dataclass(frozen=True)
class Watched:
    """What was seen; all times in seconds after the deed, None for what did not happen.

    Attributes:
        unhealthy: first /health that was not 200 (503, or refused).
        said_503: first /health with 503.
        error: when the last of the waiting clients had its error.
        clients: how each of the waiting clients ended.
        exit: when the front-end process had ended.
        code: its exit code.
        left: processes of the engine that were still there 3 s later.
        last: last lines of the log.
        words: lines of the log by which the front-end says why it ends. They are its last; a rank that
            notices a moment later may still print its own traceback behind them.
    """

    unhealthy: float | None
    said_503: float | None
    error: float | None
    clients: list[str]
    exit: float | None
    code: int | None
    left: list[str]
    last: list[str]
    words: list[str]

    def __str__(self) -> str:
        """Return one line of figures."""

        def show(value: float | None) -> str:
            return "never" if value is None else f"{value:.2f} s"

        return (
            f"503 {show(self.said_503)}, clients' errors {show(self.error)}, exit {show(self.exit)} "
            f"with {self.code}, left {len(self.left)}"
        )


def watch(engine: Engine, deed: Callable[[], None], *, clients: int = CLIENTS) -> Watched:
    """Have clients wait for long answers, do the deed, and watch until the engine's front-end ended."""
    health: list[tuple[float, int]] = []
    over = threading.Event()
    waiting = [_Client(engine.url, number) for number in range(clients)]
    prober = threading.Thread(target=_probe, args=(engine.url, health, over), daemon=True)
    for thread in (prober, *waiting):
        thread.start()
    for client in waiting:
        assert client.begun.wait(30), "the engine did not begin to answer"
    time.sleep(0.5)
    assert all(client.ended is None for client in waiting), "the answers are too short for this test"
    begun = time.monotonic()
    deed()
    exited = _wait_for_exit(engine, begun)
    for client in waiting:
        client.join(5)
    over.set()
    prober.join(5)
    ends = [client.ended for client in waiting]
    left = _left(engine, 3.0)
    lines = engine.log.read_text(errors="replace").splitlines()
    return Watched(
        unhealthy=next((at - begun for at, status in health if at > begun and status != 200), None),
        said_503=next((at - begun for at, status in health if at > begun and status == 503), None),
        error=None if None in ends or not ends else max(end for end in ends if end is not None) - begun,
        clients=[client.outcome for client in waiting],
        exit=exited,
        code=engine.process.poll(),
        left=left,
        last=lines[-12:],
        words=[line for line in lines if "fatal error: the engine died" in line],
    )


def pid_of(engine: Engine, title: str) -> int:
    """Return the process of an engine whose title matches: `Worker_PP1`, `EngineCore`."""
    found = [pid for pid, text in session(engine.process.pid).items() if re.search(rf"\b{title}\b", text)]
    assert len(found) == 1, f"{title}: {session(engine.process.pid)}"
    return found[0]


def session(leader: int) -> dict[int, str]:
    """Return the living processes of a session: process id to command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace").strip()
        except (OSError, IndexError):
            continue
    return found


def kill(engine: Engine, title: str, signal_number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return the deed of sending a signal to one process of an engine."""
    return lambda: os.kill(pid_of(engine, title), signal_number)


class _Client(threading.Thread):
    """A client that waits for a long answer: every second one as a stream, every third one structured."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.ended: float | None = None
        self.outcome = "still waiting"
        self._url = url
        self._stream = number % 2 == 0
        self._body = {
            "model": MODEL_NAME,
            "prompt": f"Tell me of number {number}",
            "max_tokens": 900,
            "ignore_eos": True,
            "temperature": 1.0,
            "seed": number,
            "stream": self._stream,
        }
        if number % 3 == 1:
            self._body["structured_outputs"] = {"regex": "[a-z ]{890,900}"}

    def run(self) -> None:
        try:
            self.outcome = self._read_stream() if self._stream else self._read_answer()
        except httpx.TransportError as error:
            self.outcome = type(error).__name__
        self.ended = time.monotonic()

    def _read_answer(self) -> str:
        self.begun.set()
        answer = httpx.post(f"{self._url}/v1/completions", json=self._body, timeout=REQUEST_SECONDS)
        return f"HTTP {answer.status_code}"

    def _read_stream(self) -> str:
        events = 0
        with httpx.stream(
            "POST", f"{self._url}/v1/completions", json=self._body, timeout=REQUEST_SECONDS
        ) as s:
            for line in s.iter_lines():
                if not line.startswith("data: {"):
                    continue
                if "error" in json.loads(line.removeprefix("data: ")):
                    return "error event"
                events += 1
                self.begun.set()
        return f"ended after {events} events"


def _probe(url: str, health: list[tuple[float, int]], over: threading.Event) -> None:
    """Ask for /health on a new connection every 50 ms; 0 stands for a refused one."""
    while not over.is_set():
        try:
            status = httpx.get(f"{url}/health", timeout=5).status_code
        except httpx.TransportError:
            status = 0
        health.append((time.monotonic(), status))
        time.sleep(0.05)


def _wait_for_exit(engine: Engine, begun: float) -> float | None:
    while time.monotonic() - begun < WATCH_SECONDS:
        if engine.process.poll() is not None:
            return time.monotonic() - begun
        time.sleep(0.02)
    return None


def _left(engine: Engine, seconds: float) -> list[str]:
    until = time.monotonic() + seconds
    while (found := session(engine.process.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    return list(found.values())
