"""The stages of a test run and what is made ready for them."""

import pytest

from tools import prepare, testrun
from tools.models.store import ModelError


def test_every_stage_has_its_needs() -> None:
    assert set(prepare.NEEDS) == set(testrun.STAGES)


def test_what_follows_is_prepared_and_nothing_else() -> None:
    commands = testrun.commands_of(testrun.PREPARE, ["chart", "e2e"])
    assert [command[1:] for command in commands] == [("-m", "tools.prepare", "chart", "e2e")]
    assert testrun.commands_of(testrun.PREPARE, []) == ()


def test_failures_are_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise ModelError("no such model; choose toy")

    monkeypatch.setitem(prepare.NEEDS, "engine", fails)
    assert prepare.main(["engine"]) == 1
    assert capsys.readouterr().err == "prepare: no such model; choose toy\n"
