"""The evidence's plan and page, and what it says where there is no GPU."""

import subprocess
from pathlib import Path

import pytest

from tools.bench.engine.cases import PROFILES
from tools.evidence import __main__ as evidence
from tools.evidence.environment import REQUIREMENTS, EvidenceError, find_model
from tools.evidence.gpus import Gpu, NoGpuError, find_gpus
from tools.evidence.page import Done, render
from tools.evidence.plan import make_plan

ONE = Gpu("NVIDIA H200", 143771, "580.65.06")


def missing() -> str:
    raise FileNotFoundError(2, "No such file or directory")


def failing() -> str:
    raise subprocess.CalledProcessError(9, ["nvidia-smi"])


def test_gpus_are_read_from_the_drivers_list() -> None:
    assert find_gpus(lambda: "NVIDIA H200, 143771, 580.65.06\nNVIDIA L4, 23034, 580.65.06\n") == [
        ONE,
        Gpu("NVIDIA L4", 23034, "580.65.06"),
    ]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (missing, "cannot be run .No such file"),
        (failing, "failed: .*9"),
        (lambda: "\n", "lists no GPU"),
        (lambda: "No devices were found\n", "something else than a list"),
    ],
)
def test_no_gpu_is_said_in_words(ask, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NoGpuError, match=words):
        find_gpus(ask)


def test_without_a_gpu_nothing_is_done_and_the_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> list[Gpu]:
        raise NoGpuError("`nvidia-smi` cannot be run (No such file or directory): no NVIDIA driver here")

    def must_not_run() -> Path:
        raise AssertionError("an environment is of no use here")

    monkeypatch.setattr(evidence, "find_gpus", none)
    monkeypatch.setattr(evidence, "ensure_environment", must_not_run)
    assert evidence.main(["--results", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert "there is no NVIDIA GPU here" in said
    assert "no NVIDIA driver" in said
    assert not (tmp_path / "results").exists()


def test_what_cannot_be_had_is_said_and_the_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "find_gpus", lambda: [ONE])
    monkeypatch.setattr(evidence, "ensure_environment", lambda: tmp_path)
    assert evidence.main(["--model", str(tmp_path / "nothing"), "--results", str(tmp_path / "results")]) == 2
    assert "is no model: give a folder with a config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "soaked", "pipelines"), [(1, "1", ["1"]), (2, "2", ["2"]), (3, "3", ["2", "3"])]
)
def test_the_number_of_gpus_says_how_many_stages(
    gpus: int, soaked: str, pipelines: list[str], tmp_path: Path
) -> None:
    text, soak, bench = make_plan(gpus, tmp_path / "venv", tmp_path / "model", tmp_path)
    assert text.env["STRUCTUREDLLM_TEST_MOST_STAGES"] == str(gpus)
    assert soak.command[soak.command.index("--stages") + 1] == soaked
    start = bench.command.index("--pipelines") + 1
    assert list(bench.command[start : bench.command.index("--output")]) == pipelines
    assert bench.command[bench.command.index("--profile") + 1] in PROFILES
    for step in (soak, bench):
        assert str(tmp_path / "venv") in step.command
        assert str(tmp_path / "model") in step.command


def test_eight_gpus_are_four_stages_and_none_is_an_error(tmp_path: Path) -> None:
    assert make_plan(8, tmp_path, tmp_path, tmp_path)[2].command.count("4") == 1
    with pytest.raises(ValueError, match="needs a GPU"):
        make_plan(0, tmp_path, tmp_path, tmp_path)


def test_a_step_writes_its_log_and_a_stale_result_does_not_count(tmp_path: Path) -> None:
    step = make_plan(1, tmp_path, tmp_path, tmp_path)[1]
    assert step.result is not None
    step.result.write_text("{}")
    stale = step.__class__("a b", "x", ("sh", "-c", "echo hello; exit 3"), {}, step.result)
    done = evidence.do(stale, tmp_path)
    assert (done.status, done.output, done.result) == (3, "hello\n", None)
    assert (tmp_path / "a-b.log").read_text() == "hello\n"


def test_the_page_says_what_failed_what_was_found_and_nothing_of_this_machines_folders(
    tmp_path: Path,
) -> None:
    steps = make_plan(2, tmp_path / "venv", tmp_path / "model", tmp_path)
    results = [None, {"results": {"valid": 600}, "ok": True}, {"summary": {"stage_time_used": None}}]
    done = [
        Done(step, status, 7.0, "first\nlast\n", result)
        for step, status, result in zip(steps, (0, 1, 0), results, strict=True)
    ]
    page = render([ONE, ONE], "hf://a/b", "vLLM 0.32.0", "2026-11-30T12:00:00Z", done)
    assert "**failed** (exit status 1)" in page
    assert "| results: valid | 600 |" in page
    assert "| stage_time_used | None |" in page
    assert "the drain has nothing to do here" in page
    assert str(tmp_path) not in page


def test_a_given_folder_must_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"config\.json"):
        find_model(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path), tmp_path) == tmp_path.resolve()


def test_the_pins_are_those_of_the_supported_version() -> None:
    pins = REQUIREMENTS.read_text().splitlines()
    assert "vllm==0.32.0" in pins
    assert all("==" in pin for pin in pins if not pin.startswith("#"))
