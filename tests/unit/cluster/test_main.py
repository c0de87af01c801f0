"""The command line: one-line errors, exit codes, what is asked of whom."""

import os
from pathlib import Path

import pytest

from tools.cluster.__main__ import NOT_UP, build_parser, main, options_of
from tools.cluster.settings import Options


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRUCTUREDLLM_CACHE", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("STRUCTUREDLLM_CLUSTER_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize("command", [["up"], ["down"], ["load-image", "x.tar"]])
def test_without_root_one_line_says_what_to_do(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(command) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "needs root" in lines[0]
    assert "sudo" in lines[0]


def test_down_of_nothing_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["down"]) == 0


def test_status_of_nothing_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == NOT_UP
    assert capsys.readouterr().out == "not up\n"


def test_a_kubeconfig_of_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubeconfig"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "run `python -m tools.cluster up`" in captured.err


def test_flags_of_up_become_options() -> None:
    arguments = build_parser().parse_args(
        ["up", "--api-port", "17000", "--cluster-cidr", "10.9.0.0/24", "--no-lws"]
    )
    assert options_of(arguments) == Options(api_port=17000, cluster_cidr="10.9.0.0/24", lws=False)
    assert options_of(build_parser().parse_args(["up"])) == Options()


def test_a_bad_variable_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("STRUCTUREDLLM_CLUSTER_API_PORT", "many")
    assert main(["up"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "cluster: error: STRUCTUREDLLM_CLUSTER_API_PORT=many: not a port number"
    ]
