"""Writes docs/reference/gateway-failures.md from the cases that the tests play; `--check` compares."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.unit.gateway.failure_cases import CASES, ELSEWHERE, Case
from tools.paths import repo_root

_HEADER = """\
# Known failures and their classes

What was reported of engines, gateways and clients, and what this gateway makes of it in the mode Enforce.
Every row is played by `tests/unit/gateway/test_failures.py`, from which the table is generated; do not edit.
The classes are described in [gateway-outcomes.md](gateway-outcomes.md).

"Status" is for a client that has no byte of the answer yet; after that, the status is 200 and the error is
the last event of the stream. "Tries" is how often engines are asked when two replicas do the same.

| Reported in | What happens | Route | Class | Status | Tries |
|---|---|---|---|---|---|
"""
_MORE = """
## Failures that take more than one answer

| Reported in | What happens | Result | Shown by |
|---|---|---|---|
"""


def page_path() -> Path:
    """Return the committed page."""
    return repo_root() / "docs" / "reference" / "gateway-failures.md"


def render() -> str:
    """Return the page as Markdown."""
    more = "".join(f"| {o.source} | {o.what} | {o.result} | `{o.test}` |\n" for o in ELSEWHERE)
    return _HEADER + "".join(_row(case) for case in CASES) + _MORE + more


def _row(case: Case) -> str:
    route = f"{case.route.value}, streamed" if case.request.get("stream") else case.route.value
    return f"| {case.source} | {case.what} | {route} | `{case.outcome}` | {case.status} | {case.attempts} |\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check return 1 if the committed one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.gen_gateway_failures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    options = parser.parse_args(argv)
    page = page_path()
    if not options.check:
        page.write_text(render())
        return 0
    if page.is_file() and page.read_text() == render():
        return 0
    print(f"{page} is out of date: run python -m tools.gen_gateway_failures", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
