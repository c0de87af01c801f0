"""What the demo prints: numbered steps with elapsed time, progress lines, tables and errors.

Owns the terminal only. Everything is also appended to build/demo/demo.log, which error messages name.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


class DemoError(Exception):
    """A step failed for a reason that the user can act on.

    Attributes:
        log: file to read next, when there is one.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


class Console:
    """Prints steps and keeps a copy in the log file.

    Args:
        log: file that every line is appended to.
        steps: how many steps there will be, for the numbering.
        clock: seconds, monotonic; injected by tests.
    """

    def __init__(self, log: Path, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self._steps = steps
        self._clock = clock
        self._number = 0
        self._began = clock()
        self._step_began = clock()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def _write(self, text: str) -> None:
        print(text, flush=True)
        with self.log.open("a") as log:
            log.write(text + "\n")

    def elapsed(self) -> float:
        """Return the seconds since the demo began."""
        return self._clock() - self._began

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._number += 1
        self._step_began = self._clock()
        self._write(f"\n==> [{self._number}/{self._steps}] {title}  (at {self.elapsed():.0f} s)")

    def info(self, text: str) -> None:
        """Print a line that belongs to the current step."""
        self._write("    " + text)

    def block(self, text: str) -> None:
        """Print several lines as they are, indented."""
        for line in text.rstrip().splitlines():
            self._write("    " + line)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print an aligned table."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
        for row in [list(header), *cells]:
            self.info("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def plain(self, text: str) -> None:
        """Print a line at the margin (the last line of the demo is one)."""
        self._write(text)


def print_failure(error: BaseException, log: Path) -> None:
    """Say on stderr what failed, why, and where to read on; never a bare traceback."""
    name = "" if isinstance(error, DemoError) else f"{type(error).__name__}: "
    print(f"\nerror: {name}{error}", file=sys.stderr)
    place = error.log if isinstance(error, DemoError) and error.log else log
    print(f"       log: {place}", file=sys.stderr)
    print(
        "       run the same command again to go on where it stopped; `make demo-down` cleans up",
        file=sys.stderr,
    )
