"""Request lines: the same as structlog would write, with one write for all of a turn of the loop."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

from structuredllm_gateway.telemetry.request_log import RequestLines, through
from tests.unit.gateway.support import capturing_log


class _Stream(io.TextIOWrapper):
    """A stream that counts how often it is flushed."""

    def __init__(self) -> None:
        self.flushes = 0
        self.binary = io.BytesIO()
        super().__init__(self.binary)

    def flush(self) -> None:
        self.flushes += 1
        super().flush()


async def test_lines_of_one_turn_are_one_write_and_say_who_wrote_them() -> None:
    stream = _Stream()
    write = RequestLines(stream, {"part": "gateway", "worker": 1}, clock=lambda: 1_500_000)
    stream.flushes = 0
    write({"status": 200, "model": 'a"b\n'})
    write({"status": 502})
    assert stream.binary.getvalue() == b""
    await asyncio.sleep(0)
    lines = [json.loads(line) for line in stream.binary.getvalue().splitlines()]
    assert stream.flushes == 1
    assert lines[0] == {
        "part": "gateway",
        "worker": 1,
        "status": 200,
        "model": 'a"b\n',
        "event": "request",
        "level": "info",
        "timestamp": "1970-01-01T00:00:00.001500Z",
    }
    assert lines[1]["status"] == 502
    write({"status": 1})
    await asyncio.sleep(0)
    assert stream.flushes == 2


async def test_a_stream_without_bytes_gets_text() -> None:
    stream = io.StringIO()
    RequestLines(stream, {})({"key": "ä"})
    await asyncio.sleep(0)
    assert json.loads(stream.getvalue())["key"] == "ä"


def test_without_a_stream_lines_go_through_the_log() -> None:
    lines: list[Any] = []
    through(capturing_log(lines))({"status": 200})
    assert lines == [{"level": "info", "event": "request", "status": 200}]
