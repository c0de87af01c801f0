"""Starting, recognising and ending programs."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from tools.cluster import processes
from tools.cluster.errors import CommandError, MissingToolError, StartError


def start_sleep(tmp_path: Path, *argv: str) -> tuple[Path, processes.Identity]:
    pidfile = tmp_path / "run" / "sleep.pid"
    line = argv or ("sleep", "60")
    return pidfile, processes.start(line, log=tmp_path / "sleep.log", pidfile=pidfile, digest="d")


def test_a_started_program_is_known_and_ended(tmp_path: Path) -> None:
    pidfile, identity = start_sleep(tmp_path)
    assert processes.running(pidfile) == identity
    assert processes.stop(pidfile)
    assert not Path(f"/proc/{identity.pid}").exists(), "not even a zombie stays"
    assert not pidfile.exists()
    assert not processes.stop(pidfile)


def test_a_program_that_ignores_term_is_killed(tmp_path: Path) -> None:
    pidfile, identity = start_sleep(
        tmp_path, "sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.1; done"
    )
    log = tmp_path / "sleep.log"
    processes.wait_until(
        lambda: None if "on" in processes.tail(log) else "no trap yet", what="sh", timeout_seconds=5
    )
    assert processes.stop(pidfile, grace_seconds=0.2)
    assert processes.start_ticks(identity.pid) is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_recycled_pid_is_neither_ours_nor_signalled(tmp_path: Path, change: dict[str, object]) -> None:
    pidfile, identity = start_sleep(tmp_path)
    other = tmp_path / "other.pid"
    other.write_text(json.dumps(dataclasses.asdict(identity) | change))
    assert processes.running(other) is None
    assert not processes.stop(other)
    assert processes.running(pidfile) == identity
    processes.stop(pidfile)


def test_a_killed_program_counts_as_ended_before_anyone_collects_it(tmp_path: Path) -> None:
    pidfile, identity = start_sleep(tmp_path)
    os.kill(identity.pid, signal.SIGKILL)
    processes.wait_until(
        lambda: "alive" if processes.running(pidfile) else None, what="sleep", timeout_seconds=5
    )
    processes.reap(identity.pid)
    assert not processes.stop(pidfile)


@pytest.mark.parametrize("text", ["", "12", "{}", '{"pid": 1}'])
def test_a_damaged_pid_file_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.pid").write_text(text)
    assert processes.running(tmp_path / "x.pid") is None


def test_waiting_ends_at_once_when_the_program_ended_and_shows_its_log(tmp_path: Path) -> None:
    pidfile, _ = start_sleep(tmp_path, "sh", "-c", "echo the cause; exit 1")
    with pytest.raises(StartError, match="it ended") as caught:
        processes.wait_until(
            lambda: "never", what="sh", timeout_seconds=30, pidfile=pidfile, log=tmp_path / "sleep.log"
        )
    assert "the cause" in str(caught.value)
    assert str(tmp_path / "sleep.log") in str(caught.value)


def test_waiting_ends_at_the_deadline_and_says_what_is_missing() -> None:
    with pytest.raises(StartError, match=r"not ready after 0 s: no answer"):
        processes.wait_until(lambda: "no answer", what="x", timeout_seconds=0.1)


def test_a_failed_command_tells_its_last_line_and_where_the_rest_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = ["sh", "-c", "echo bad >&2; echo worse >&2; exit 3"]
    with pytest.raises(CommandError, match="try: exit code 3: worse") as caught:
        processes.run(argv, what="try", timeout_seconds=5, log=log)
    assert caught.value.log == log
    assert "bad" in log.read_text()


def test_a_command_is_stopped_at_its_deadline() -> None:
    with pytest.raises(CommandError, match="no end after 0 s"):
        processes.run(["sleep", "5"], what="nap", timeout_seconds=0.1)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="no-such-program"):
        processes.run(["no-such-program"], what="x", timeout_seconds=1)
    with pytest.raises(MissingToolError, match="no-such-program"):
        start_sleep(tmp_path, "no-such-program")


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert processes.tail(log, lines=2) == "line 9998\nline 9999"
    assert processes.tail(tmp_path / "absent") == ""


def test_a_program_whose_pid_file_was_never_written_is_found_by_its_files() -> None:
    lines = [
        (1, ["/cache/bin/etcd", "--data-dir=/c/state/etcd"]),
        (2, ["/usr/bin/etcd", "--data-dir=/c/state-2/etcd"]),
        (3, ["less", "/c/state/etcd"]),
        (4, [""]),
    ]
    assert processes.strays(lines, "etcd", Path("/c/state")) == [1]


def test_a_stray_is_ended(tmp_path: Path) -> None:
    pidfile, identity = start_sleep(
        tmp_path, "tail", "-f", f"--pid={os.getpid()}", str(tmp_path / "sleep.log")
    )
    pidfile.unlink()
    processes.kill_strays("tail", tmp_path)
    processes.reap(identity.pid)
    assert processes.start_ticks(identity.pid) is None
