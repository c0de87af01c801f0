"""Programs that run on after us, and short commands: start, find again, stop; every wait has a deadline.

Owns pid files and signals. A process is known by pid, start time and boot, so a recycled pid is never taken
for ours and never signalled. Imports only errors.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import CommandError, MissingToolError, StartError

POLL_SECONDS = 0.1
TAIL_LINES = 12


@dataclass(frozen=True)
class Identity:
    """What tells one process from every other one on this machine, before and after a reboot."""

    pid: int
    start_ticks: int
    boot_id: str
    digest: str


def argv_digest(argv: Sequence[str], salt: str = "") -> str:
    """Return a short hash of a command line and of what else decides whether a running process is current."""
    return hashlib.sha256("\0".join([*argv, salt]).encode()).hexdigest()[:16]


def tail(log: Path | None, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or an empty text when there is none."""
    if log is None or not log.is_file():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 16_384))
        text = stream.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def run(
    argv: Sequence[str],
    *,
    what: str,
    timeout_seconds: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
) -> str:
    """Run a command to its end and return its stdout.

    Raises:
        MissingToolError: The program does not exist.
        CommandError: It failed or ran past the deadline; the cause is its last line of stderr.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=None if env is None else dict(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingToolError(f"{what}: the program {argv[0]} is missing") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{what}: no end after {timeout_seconds:.0f} s: {' '.join(argv)[:200]}") from error
    if log is not None:
        with log.open("a") as stream:
            stream.write(f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        told = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise CommandError(f"{what}: exit code {done.returncode}: {told[-1][:600]}", log=log)
    return done.stdout


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return when a live process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself, so count from the last one.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def read_identity(pidfile: Path) -> Identity | None:
    """Return what a pid file says, or None when it is absent or damaged."""
    try:
        return Identity(**json.loads(pidfile.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def running(pidfile: Path) -> Identity | None:
    """Return the identity of the process that a pid file names while that very process lives."""
    identity = read_identity(pidfile)
    if identity is None or identity.boot_id != boot_id():
        return None
    return identity if start_ticks(identity.pid) == identity.start_ticks else None


def start(
    argv: Sequence[str],
    *,
    log: Path,
    pidfile: Path,
    digest: str = "",
    env: Mapping[str, str] | None = None,
    die_with_parent: bool = False,
) -> Identity:
    """Start a program in its own session with output appended to a log, and write its pid file.

    Args:
        argv: The command line; the program is looked up in PATH.
        log: Gets stdout and stderr.
        pidfile: Written once the process exists.
        digest: Kept in the pid file, to see later whether the process is current.
        env: Its environment; ours by default.
        die_with_parent: Ask the kernel to end it when the calling thread ends (for tests).
    """
    setpriv = shutil.which("setpriv") if die_with_parent else None
    line = [setpriv, "--pdeathsig", "TERM", "--", *argv] if setpriv else list(argv)
    program = shutil.which(line[0])
    if program is None:
        raise MissingToolError(f"the program {line[0]} is missing")
    log.parent.mkdir(parents=True, exist_ok=True)
    pidfile.parent.mkdir(parents=True, exist_ok=True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # posix_spawn instead of Popen: nothing here waits for the child, and Popen objects complain about that.
    pid = os.posix_spawn(
        program,
        line,
        dict(os.environ if env is None else env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    identity = Identity(pid, start_ticks(pid) or 0, boot_id(), digest)
    temporary = pidfile.with_suffix(".new")
    temporary.write_text(json.dumps(identity.__dict__))
    temporary.replace(pidfile)
    return identity


def reap(pid: int) -> None:
    """Collect the exit of a child of ours, so that no zombie stays; not our child is fine."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def stop(pidfile: Path, *, grace_seconds: float = 10.0) -> bool:
    """End the process of a pid file: TERM, wait, KILL, wait; then remove the file.

    Returns:
        Whether there was a process to end.
    """
    identity = running(pidfile)
    if identity is not None:
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
            try:
                os.kill(identity.pid, number)
            except ProcessLookupError:
                break
            if _gone(pidfile, identity.pid, seconds):
                break
        else:
            raise CommandError(f"process {identity.pid} ({pidfile.stem}) does not end, even after KILL")
    pidfile.unlink(missing_ok=True)
    return identity is not None


def _gone(pidfile: Path, pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        if running(pidfile) is None:
            # A zombie counts as ended; collect it when it is our child.
            reap(pid)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)


def command_lines(proc: Path = Path("/proc")) -> list[tuple[int, list[str]]]:
    """Return pid and argv of every process."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            raw = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        found.append((int(entry.name), raw.decode(errors="replace").rstrip("\0").split("\0")))
    return found


def strays(lines: Iterable[tuple[int, list[str]]], name: str, state: Path) -> list[int]:
    """Return the pids of programs called `name` that were given files of `state`, from (pid, argv) pairs.

    Finds a program that was started by somebody who was killed before writing the pid file.
    """
    return [
        pid
        for pid, argv in lines
        if Path(argv[0]).name == name and any(f"{state}/" in word for word in argv[1:])
    ]


def kill_strays(name: str, state: Path) -> None:
    """End programs that use a cluster's files and that no pid file names any more."""
    for pid in strays(command_lines(), name, state):
        kill(pid)


def kill(pid: int, wait_seconds: float = 5.0) -> None:
    """Kill one process and wait until it is gone."""
    ticks = start_ticks(pid)
    if ticks is None:
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + wait_seconds
    while start_ticks(pid) == ticks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def wait_until(
    check: Callable[[], str | None],
    *,
    what: str,
    timeout_seconds: float,
    pidfile: Path | None = None,
    log: Path | None = None,
) -> None:
    """Poll until `check` returns None; the text that it returns otherwise says what is still missing.

    Raises:
        StartError: At the deadline, or as soon as the process of `pidfile` has ended, with the log's tail.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        missing = check()
        if missing is None:
            return
        ended = pidfile is not None and running(pidfile) is None
        if ended or time.monotonic() >= deadline:
            why = "it ended" if ended else f"not ready after {timeout_seconds:.0f} s: {missing}"
            told = tail(log)
            raise StartError(f"{what}: {why}" + (f"\n{told}\n" if told else ""), log=log)
        time.sleep(POLL_SECONDS)
