"""The judgement of an answer: each choice against what was asked for, one verdict for all.

Owns the order of the checks (see `outcomes.PRECEDENCE`); pure, must not import I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from structuredllm_gateway.openai.answers import Choice
from structuredllm_gateway.validation.outcomes import PRECEDENCE, Outcome
from structuredllm_gateway.validation.strict_json import TextFault, parse_strict
from structuredllm_gateway.validation.validators import CompiledSchema


@dataclass(frozen=True)
class Verdict:
    """The class of an answer, why, and where: the choice's index and the JSON pointer in its text."""

    outcome: Outcome
    reason: str = ""
    choice: int | None = None
    pointer: str | None = None

    @property
    def message(self) -> str:
        """One sentence for the client."""
        where = "" if self.choice is None else f" (choice {self.choice})"
        return f"The answer is not what the request asked for{where}: {self.reason}."


def judge(choices: Sequence[Choice], schema: CompiledSchema | None) -> Verdict:
    """Judge every choice; the verdict that comes first in the precedence stands for the answer.

    Args:
        choices: the answer's choices; none at all counts as empty.
        schema: what the texts must satisfy; None = the structure asked for cannot be validated here, then
            only truncated and empty answers are told apart from PLAIN ones.
    """
    if not choices:
        return Verdict(Outcome.EMPTY, "the answer has no choices")
    return min(
        (judge_choice(choice, schema) for choice in choices), key=lambda v: PRECEDENCE.index(v.outcome)
    )


def judge_choice(choice: Choice, schema: CompiledSchema | None) -> Verdict:
    """Judge one choice."""
    index = choice.index
    if choice.finish_reason == "error":
        return Verdict(Outcome.GRAMMAR_REJECTED, "the engine ended the answer with an error", index)
    if choice.finish_reason == "length":
        return Verdict(Outcome.TRUNCATED, "the answer was cut by its token limit", index)
    if choice.oversized:
        return Verdict(Outcome.PLAIN, "the answer is too long to judge", index)
    if choice.has_tool_calls and not choice.text:
        return Verdict(Outcome.PLAIN, "the model called a tool instead of answering", index)
    if not choice.text or choice.text.isspace():
        return Verdict(Outcome.EMPTY, "the answer has no text", index)
    if schema is None:
        return Verdict(Outcome.PLAIN)
    parsed = parse_strict(choice.text)
    if isinstance(parsed, TextFault):
        return Verdict(parsed.outcome, parsed.reason, index)
    violation = schema.violation(parsed.value)
    if violation is not None:
        return Verdict(Outcome.SCHEMA_VIOLATION, violation.message, index, violation.pointer)
    return Verdict(Outcome.OK)
