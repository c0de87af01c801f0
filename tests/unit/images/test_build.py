"""The order of a build, with a scripted builder program in place of buildah."""

import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from tools.images.build import ImageBuilder
from tools.images.errors import StepFailedError, ToolMissingError
from tools.images.runner import Runner

FAKE_DOCKER = """#!/bin/sh
echo "$@" >> "$FAKE_CALLS"
if [ "$1" = "$FAKE_FAILS" ]; then echo no space left on device >&2; exit 7; fi
if [ "$1" = save ]; then cp "$FAKE_ARCHIVE" "$3"; fi
"""


class World:
    """A tree, a cache, a `docker` that notes its calls, and what the person saw."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.cache, self.calls_file = tmp_path / "tree", tmp_path / "cache", tmp_path / "calls"
        self.said: list[str] = []
        for folder in (self.root, self.cache, tmp_path / "bin"):
            folder.mkdir()
        self.archive = tmp_path / "archive.tar"
        data = json.dumps({"manifests": [{"digest": "sha256:ab"}]}).encode()
        with tarfile.open(self.archive, "w") as tar:
            info = tarfile.TarInfo("index.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        program = tmp_path / "bin" / "docker"
        program.write_text(FAKE_DOCKER)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.builder = ImageBuilder(self.root, self.cache, "docker", self.said.append)

    def calls(self) -> list[str]:
        """Return the first words of docker's calls."""
        return [line.split()[0] for line in self.calls_file.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world whose docker is first on PATH."""
    made = World(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_CALLS", str(made.calls_file))
    monkeypatch.setenv("FAKE_ARCHIVE", str(made.archive))
    monkeypatch.setenv("FAKE_FAILS", "")
    return made


def test_an_image_is_built_and_written_once(world: World) -> None:
    first = world.builder.ensure("operator")
    second = world.builder.ensure("operator")
    assert first == second
    assert first.digest == "sha256:ab"
    assert first.archive.name == first.reference.rpartition("/")[2].replace(":", "-") + ".tar"
    assert world.calls() == ["build", "save"]


def test_a_changed_source_is_built_under_a_new_name(world: World) -> None:
    first = world.builder.ensure("operator")
    (world.root / "uv.lock").write_text("new")
    second = world.builder.ensure("operator")
    assert first.reference != second.reference
    assert world.calls() == ["build", "save"] * 2


def test_the_third_version_drops_the_first(world: World) -> None:
    built = []
    for version in ("1", "2", "3"):
        (world.root / "uv.lock").write_text(version)
        built.append(world.builder.ensure("operator").archive)
    assert [path.exists() for path in built] == [False, True, True]


def test_a_failed_export_leaves_no_archive_and_names_cause_and_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "save")
    log = world.root / "build" / "logs" / "images-operator.log"
    with pytest.raises(StepFailedError, match="status 7") as caught:
        world.builder.ensure("operator")
    assert "no space left on device" in str(caught.value)
    assert str(log) in str(caught.value)
    assert "no space left on device" in log.read_text()
    assert not [*world.cache.glob("*.tar"), *world.cache.glob("*.half")]
    monkeypatch.setenv("FAKE_FAILS", "")
    assert world.builder.ensure("operator").archive.is_file()


def test_steps_say_what_they_do_and_how_long(world: World) -> None:
    world.builder.ensure("gateway")
    assert any(line.startswith("images: building localhost/structuredllm/gateway") for line in world.said)
    assert any("done in" in line and line.endswith(" s") for line in world.said)


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "log", lambda _: None)
    with pytest.raises(StepFailedError, match="ran longer than"):
        runner.run(["sleep", "30"], timeout_seconds=0.1)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "log", lambda _: None)
    with pytest.raises(ToolMissingError, match="no-such-program is not installed"):
        runner.run(["no-such-program"])
