"""Runs a build's commands one by one: says what is done and how long it took, keeps the output in a log file.

Owns subprocesses. A command that fails, hangs or is interrupted is ended with its children.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.images.errors import StepFailedError, ToolMissingError

STEP_TIMEOUT_SECONDS = 2400
_TAIL_LINES = 12
_TAIL_BYTES = 16_384


@dataclass(frozen=True)
class Runner:
    """Runs commands; `log` gets all their output, `say` the lines for the person who waits."""

    log: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step and say how long it took, also when it fails."""
        self.say(f"images: {title} ...")
        begin = self.clock()
        try:
            yield
        except BaseException:
            self.say(f"images: {title}: failed after {self.clock() - begin:.1f} s")
            raise
        self.say(f"images: {title}: done in {self.clock() - begin:.1f} s")

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = STEP_TIMEOUT_SECONDS,
    ) -> None:
        """Run one command to its end.

        Raises:
            ToolMissingError: the program does not exist.
            StepFailedError: exit status not 0, or the time ran out.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            output.write(f"$ {' '.join(argv)}\n".encode())
            output.flush()
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise ToolMissingError(f"the program {argv[0]} is not installed") from error
            try:
                status = process.wait(timeout_seconds)
            except subprocess.TimeoutExpired as error:
                _end(process)
                raise StepFailedError(
                    f"{argv[0]} ran longer than {timeout_seconds:.0f} s and was ended; log: {self.log}"
                ) from error
            except BaseException:
                _end(process)
                raise
        if status != 0:
            raise StepFailedError(
                f"{argv[0]} ended with status {status}; its last lines:\n{_tail(self.log)}\nlog: {self.log}"
            )


def _end(process: "subprocess.Popen[bytes]") -> None:
    # The command leads its own session, so its children are ended with it.
    for number, patience_seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


def _tail(log: Path) -> str:
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = handle.read().decode(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:])
