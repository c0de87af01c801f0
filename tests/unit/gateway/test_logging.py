"""Log lines: JSON, one object a line, and none from below for each request."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from structuredllm_gateway.telemetry.logging import Stamp, configure_logging, get_logger, render


@pytest.fixture
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name in ("httpx", "uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored")
def test_every_line_is_json_and_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")
    get_logger("gateway").info("request", status=200)
    get_logger("gateway").debug("not shown")
    logging.getLogger("httpx").info("HTTP Request: POST ...")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("asyncio").warning("from a library")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["request", "from a library", "failed"]
    assert lines[0]["status"] == 200
    assert all({"level", "timestamp"} <= set(line) for line in lines)
    assert "broken" in lines[2]["exception"]


def test_time_is_utc_with_microseconds_and_follows_the_clock() -> None:
    times = iter([1_700_000_000_000_001_000, 1_700_000_000_999_999_999, 1_700_000_001_000_000_000])
    stamp = Stamp(lambda: next(times))
    stamped = [stamp(None, "info", {})["timestamp"] for _ in range(3)]
    assert stamped == [
        "2023-11-14T22:13:20.000001Z",
        "2023-11-14T22:13:20.999999Z",
        "2023-11-14T22:13:21.000000Z",
    ]


def test_anything_can_be_logged_and_stays_one_line() -> None:
    fields: dict[Any, Any] = {"event": "a\nb", "path": Path("/x"), 1: {2}, "n": float("nan")}
    line = render(None, "info", fields)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"event": "a\nb", "path": repr(Path("/x")), "1": "{2}", "n": None}
