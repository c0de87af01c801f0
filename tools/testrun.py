"""Runs the test stages in order and says how long each took.

Owns the list of stages. A stage is a list of commands; the first failing command ends the run with its exit
status, after the stage's log place was named. The long stages end what they start by themselves (fixtures).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.paths import repo_root

PYTHON = sys.executable
TYPED = (
    "operator/src",
    "gateway/src",
    "engine-patches/src",
    "probe/src",
    "tools",
    "tests",
)
INSIDE = "tests/engine/inside"
INSIDE_INI = f"{INSIDE}/pytest.ini"

PREPARE = "prepare"
"""Makes ready what the stages after it need; given their names when it runs."""

STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "check": (
        (PYTHON, "-m", "ruff", "format", "--check", "."),
        (PYTHON, "-m", "ruff", "check", "."),
        (PYTHON, "-m", "mypy", *TYPED),
        (str(Path(PYTHON).parent / "lint-imports"),),
        (PYTHON, "-m", "tools.generate", "--check"),
    ),
    "unit": ((PYTHON, "-m", "pytest", "tests/unit", "-q"),),
    "chart": ((PYTHON, "-m", "pytest", "tests/chart", "-q"),),
    "contract": ((PYTHON, "-m", "pytest", "tests/contract", "-q"),),
    "engine": (
        (PYTHON, "-m", "tools.engine_env", "run", "-m", "pytest", "-c", INSIDE_INI, INSIDE, "-q"),
        (PYTHON, "-m", "pytest", "tests/engine", "-v", "--durations=20"),
    ),
    "e2e": ((PYTHON, "-m", "pytest", "tests/e2e", "-v", "--durations=10"),),
}


def commands_of(name: str, following: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return a stage's commands; `following` are the stages that come after it."""
    if name == PREPARE:
        return ((PYTHON, "-m", "tools.prepare", *following),) if following else ()
    return STAGES[name]


def run_stage(name: str, following: Sequence[str]) -> int:
    """Run one stage's commands in the repository root; return the first non-zero status, or 0."""
    for command in commands_of(name, following):
        status = subprocess.run(command, cwd=repo_root(), check=False).returncode
        if status != 0:
            print(f"error: stage {name} failed ({status}): {' '.join(command)}", file=sys.stderr)
            return status
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the stages named on the command line, print a table of their times, stop at the first failure."""
    parser = argparse.ArgumentParser(prog="python -m tools.testrun", description=__doc__)
    parser.add_argument("stages", nargs="+", choices=sorted((PREPARE, *STAGES)))
    names = parser.parse_args(argv).stages
    took: list[tuple[str, float]] = []
    status = 0
    for number, name in enumerate(names, start=1):
        print(f"==> [{number}/{len(names)}] {name}", flush=True)
        began = time.monotonic()
        status = run_stage(name, names[number:])
        took.append((name, time.monotonic() - began))
        if status != 0:
            break
    print("\nstage        seconds")
    for name, seconds in took:
        print(f"{name:<12} {seconds:7.1f}")
    print(f"{'total':<12} {sum(seconds for _, seconds in took):7.1f}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
