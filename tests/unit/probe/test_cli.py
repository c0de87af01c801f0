"""The command: exit codes and output. The three main verdicts in a real process, the rest in a thread."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from structuredllm_probe.cli import main
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode

_SMALL = ("--requests", "4", "--concurrency", "4", "--timeout", "30")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def _process(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "structuredllm_probe.cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_healthy_is_0_in_a_process() -> None:
    async with FakeEngine() as engine:
        code, out, err = await _process(engine.url, "--json", "--seed", "abc", *_SMALL)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["verdict"] == "healthy"
    assert (report["model"], report["seed"], report["url"]) == ("toy", "abc", engine.url)
    assert report["counts"] == {"valid": 3, "plain_ok": 1}


async def test_cold_reject_is_1_in_a_process() -> None:
    async with FakeEngine(Mode.COLD_REJECT) as engine:
        code, out, _ = await _process(engine.url, "--model", "toy", *_SMALL)
    assert code == 1
    assert "grammar_rejected" in out
    assert "faulty (GrammarRejected): 3 of 3" in out


async def test_hang_is_1_in_a_process() -> None:
    async with FakeEngine(Mode.HANG) as engine:
        code, out, _ = await _process(
            engine.url,
            "--model",
            "toy",
            "--requests",
            "3",
            "--concurrency",
            "3",
            "--timeout",
            "2.5",
            "--json",
        )
    assert code == 1
    assert json.loads(out)["reason"] == "ProbeTimeout"


async def test_unreachable_is_2() -> None:
    async with FakeEngine(Mode.DEAD) as engine:
        assert await asyncio.to_thread(main, [engine.url, "--model", "toy", *_SMALL]) == 2


async def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeEngine() as engine:
        assert await asyncio.to_thread(main, [engine.url, *_SMALL]) == 0
    out, err = capsys.readouterr()
    assert "3 structured and 1 plain requests" in out
    assert "healthy (BurstPassed): 3 of 3 structured answers valid" in out
    assert [line.split() for line in out.splitlines() if line.startswith("  ")] == [
        ["outcome", "requests"],
        ["valid", "3"],
        ["plain_ok", "1"],
    ]
    assert err == ""  # no progress where stderr is no terminal


async def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with FakeEngine() as engine:
        await asyncio.to_thread(main, [engine.url, *_SMALL, "--json"])
    out, err = capsys.readouterr()
    assert err.endswith("\r4 of 4 requests answered\n")
    assert json.loads(out)["requests"] == 4


async def test_several_models_need_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeEngine(script=FakeScript(models=("a", "b"))) as engine:
        assert await asyncio.to_thread(main, [engine.url, *_SMALL]) == 2
        assert "one of: a, b" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [engine.url, "--model", "b", *_SMALL]) == 0


async def test_the_api_key_is_sent_and_never_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    async with FakeEngine(script=FakeScript(api_key="s3cret")) as engine:
        assert await asyncio.to_thread(main, [engine.url, "--api-key-env", "MY_KEY", *_SMALL]) == 0
        assert await asyncio.to_thread(main, [engine.url, "--model", "toy", *_SMALL]) == 2
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert "HTTP 401" in out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["localhost:8000"], "URL 'localhost:8000' is not usable"),
        (["http://127.0.0.1:1", "--requests", "0"], "requests = 0 is out of range"),
        (["http://127.0.0.1:1", "--timeout", "nan"], "timeout_seconds"),
        (["http://127.0.0.1:1"], "check the address"),
        (["http://127.0.0.1:1", "--api-key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    ],
)
def test_wrong_use_is_2_with_one_clear_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err
    assert err.count("\n") == 1


def test_an_unknown_option_is_2() -> None:
    with pytest.raises(SystemExit) as raised:
        main(["http://h", "--nope"])
    assert raised.value.code == 2
