"""Writes docs/reference/gateway-outcomes.md from the gateway's classes; `--check` compares."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.upstream.retry import is_retryable
from structuredllm_gateway.validation.outcomes import FAULTS, MEANINGS, PRECEDENCE, Outcome
from tools.paths import repo_root

_PASSES = (Outcome.OK, Outcome.PLAIN, Outcome.TRUNCATED)
_HEADER = """\
# Outcome classes of the gateway

Every request has exactly one class: in the header `x-structuredllm-outcome`, in the log line (`outcome`), in
the label `outcome` of `structuredllm_gateway_requests_total`, and in the last comment of a stream. Generated
from `validation/outcomes.py`; do not edit.

## Precedence

When more than one class applies to a choice or to a request, the one that is higher in the table wins: a cut
answer is `truncated` and not `not_json`. Among the choices of one answer a class that passes never hides one
that is refused; below that, the table decides.

"Enforce" and "Observe" are the validation modes. *refused* is an error with the class in its message (a
status where no byte was sent yet, else the last event of the stream); *passes* is the answer as the engine
gave it, with the class in the header. "Retried" says whether Enforce asks another replica once, while the
client has no byte.

| Class | Meaning | Enforce | Observe | Retried |
|---|---|---|---|---|
"""
_VALIDATED = (
    (
        "`response_format` / `text.format` of type `json_schema`, `structured_outputs.json`",
        "JSON (RFC 8259, strict) and the schema (draft 2020-12; `format` only with "
        "`validation.assert_formats`)",
    ),
    (
        "`response_format` / `text.format` of type `json_object`, `structured_outputs.json_object`",
        "a JSON object",
    ),
    ("`structured_outputs.regex`", "the whole text, on a linear-time engine; `.` matches line ends too"),
    ("`structured_outputs.choice`", "the text is one of the list"),
    (
        "`tools` with `strict`, or `tool_choice` required or named",
        "a required call is there; the arguments of every call satisfy the function's schema",
    ),
    (
        "`structured_outputs.grammar` and `.structural_tag`, `response_format` of type `structural_tag`, any "
        "structure with `echo`, any in the mode Off",
        "not validated: `plain`, counted in `structuredllm_gateway_unvalidated_total` by kind",
    ),
    (
        "`guided_*` (older vLLM)",
        "sent on as `structured_outputs`, judged as that, named in `x-structuredllm-warning`",
    ),
)
_FOOTER = """
Strict JSON refuses what many parsers accept: NaN and Infinity, a name twice in one object, raw control
characters, lone surrogates, a byte order mark. Two different structures in one request are refused with 400.
"""


def page_path() -> Path:
    """Return the committed page."""
    return repo_root() / "docs" / "reference" / "gateway-outcomes.md"


def render() -> str:
    """Return the page as Markdown."""
    ways = "".join(f"| {asked} | {judged} |\n" for asked, judged in _VALIDATED)
    title = "\n## What is validated\n\n| Asked for by | Judged |\n|---|---|\n"
    return _HEADER + "".join(_row(outcome) for outcome in PRECEDENCE) + title + ways + _FOOTER


def _row(outcome: Outcome) -> str:
    passes = outcome in _PASSES
    enforce = "passes" if passes else "-" if outcome is Outcome.CLIENT_CLOSED else "refused"
    observe = "passes" if outcome in FAULTS else enforce
    retried = is_retryable(outcome, mode=ValidationMode.ENFORCE, committed=False, upstream_status=503)
    again = "only after 503" if outcome is Outcome.UPSTREAM_5XX else "yes" if retried else "no"
    return f"| `{outcome}` | {MEANINGS[outcome]} | {enforce} | {observe} | {again} |\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check return 1 if the committed one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.gen_gateway_outcomes", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    options = parser.parse_args(argv)
    page = page_path()
    if not options.check:
        page.write_text(render())
        return 0
    if page.is_file() and page.read_text() == render():
        return 0
    print(f"{page} is out of date: run python -m tools.gen_gateway_outcomes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
