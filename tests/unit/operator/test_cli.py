"""Settings come from the command line and the environment; bad ones are named."""

import asyncio

import pytest

from structuredllm_operator.cli import main
from structuredllm_operator.settings import Settings


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("structuredllm-operator 0.")


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for field in Settings.model_fields:
        assert f"--{field.replace('_', '-')}" in text


def test_a_bad_value_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workers", "0"]) == 2
    assert "--workers" in capsys.readouterr().err


async def test_a_missing_kubeconfig_is_named_with_a_cure(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("x") / "none"
    arguments = ["--kubeconfig", str(path), "--metrics-port", "0", "--liveness-port", "0"]
    # In a thread, because it starts an event loop of its own.
    assert await asyncio.to_thread(main, arguments) == 1
    assert str(path) in capsys.readouterr().err


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTUREDLLM_OPERATOR_NAMESPACES", "a, b")
    monkeypatch.setenv("STRUCTUREDLLM_OPERATOR_RESYNC_SECONDS", "5")
    settings = Settings()
    assert settings.namespace_list() == ["a", "b"]
    assert settings.resync_seconds == 5.0
