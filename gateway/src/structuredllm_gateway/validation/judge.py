"""The judgement of an answer: each choice against what was asked for, one verdict for all.

Owns the order of the checks (see `outcomes.PRECEDENCE`); pure, must not import I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from structuredllm_gateway.openai.answers import Choice, ToolCall
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.outcomes import Outcome, weight_among_choices
from structuredllm_gateway.validation.strict_json import TextFault, holds_json, parse_strict
from structuredllm_gateway.validation.validators import CompiledSchema

_OWN_ENDS = frozenset({"stop", "tool_calls", "function_call"})
# Pretty-printed JSON has runs of twice its depth; an engine that has run away sends nothing else.
_RUNAWAY_TAIL = 100
_RUNAWAY_RUN = 500
_WHITESPACE_RUN = re.compile(r"[ \t\r\n]+")


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


_OK = Verdict(Outcome.OK)


def judge(choices: Sequence[Choice], expected: Expectation) -> Verdict:
    """Judge every choice; the worst verdict stands for the answer (`outcomes.weight_among_choices`)."""
    verdicts = [judge_choice(choice, expected) for choice in choices]
    if len(verdicts) == 1 and expected.choices <= 1:
        return verdicts[0]
    if len(choices) < expected.choices:
        lacking = f"the answer has {len(choices)} of {expected.choices} choices"
        verdicts.append(Verdict(Outcome.EMPTY, lacking))
    return min(verdicts, key=lambda verdict: weight_among_choices(verdict.outcome))


def judge_choice(choice: Choice, expected: Expectation) -> Verdict:
    """Judge one choice."""
    return _ended(choice) or _called(choice, expected) or _written(choice, expected)


def _ended(choice: Choice) -> Verdict | None:
    """Judge how the choice ended; None = by itself."""
    reason, index = choice.finish_reason, choice.index
    if reason in _OWN_ENDS:
        return None
    if reason == "error":
        return Verdict(Outcome.GRAMMAR_REJECTED, "the engine ended the answer with an error", index)
    if reason in ("length", "repetition") and _ran_away(choice):
        return Verdict(Outcome.WHITESPACE_RUNAWAY, "the engine sent white space until it was stopped", index)
    if reason == "length":
        return Verdict(Outcome.TRUNCATED, "the answer was cut by its token limit", index)
    why = "without a finish reason" if reason is None else f"with the finish reason {reason[:32]!r}"
    return Verdict(Outcome.FINISH_ABNORMAL, f"the engine ended the answer {why}", index)


def _ran_away(choice: Choice) -> bool:
    texts = [choice.text or "", *(call.arguments for call in choice.tool_calls)]
    for text in texts:
        runs = [match.end() - match.start() for match in _WHITESPACE_RUN.finditer(text)]
        tail = len(text) - len(text.rstrip(" \t\r\n"))
        if tail >= _RUNAWAY_TAIL or max(runs, default=0) >= _RUNAWAY_RUN:
            return True
    return False


def _called(choice: Choice, expected: Expectation) -> Verdict | None:
    """Judge the calls; None = there are none and none was required, the text decides."""
    index = choice.index
    if not choice.tool_calls:
        if not expected.requires_call:
            return None
        if not _has_text(choice):
            return _missing(choice, "a call was required, the answer has none and no text")
        return Verdict(Outcome.SCHEMA_VIOLATION, "a call was required, the answer is text", index)
    if expected.known_tools is None:
        if _has_text(choice):
            return None
        return Verdict(Outcome.EMPTY, "the answer calls a function, and the request has none", index)
    found = [_judged_call(call, choice, expected) for call in choice.tool_calls]
    return min(found, key=lambda verdict: weight_among_choices(verdict.outcome))


def _judged_call(call: ToolCall, choice: Choice, expected: Expectation) -> Verdict:
    index = choice.index
    is_judged = expected.requires_call or expected.arguments
    if is_judged and call.name not in (expected.known_tools or ()):
        return Verdict(Outcome.SCHEMA_VIOLATION, "the answer calls a function that the request lacks", index)
    if expected.only_tool not in (None, call.name):
        return Verdict(
            Outcome.SCHEMA_VIOLATION, "the answer calls another function than the named one", index
        )
    schema = expected.arguments.get(call.name)
    if schema is None:
        return Verdict(Outcome.PLAIN, "the model called a tool instead of answering", index)
    return _judged_json(call.arguments, schema, index, "the arguments of a call are not right: ")


def _written(choice: Choice, expected: Expectation) -> Verdict:
    """Judge the text of a choice without calls."""
    schema = expected.content
    if not expected.has_structure:
        return Verdict(Outcome.PLAIN, "the model answered instead of calling a tool")
    if schema is not None and expected.content_is_text:
        if schema.violation(choice.text or "") is None:
            return _OK
        if not _has_text(choice):
            return _missing(choice, "the answer has no text", schema)
        return Verdict(Outcome.SCHEMA_VIOLATION, "the text is not what was asked for", choice.index)
    if not _has_text(choice):
        return _missing(choice, "the answer has no text")
    if schema is None:
        return Verdict(Outcome.PLAIN)
    return _judged_json(choice.text or "", schema, choice.index)


def _judged_json(text: str, schema: CompiledSchema, index: int, prefix: str = "") -> Verdict:
    parsed = parse_strict(text)
    if isinstance(parsed, TextFault):
        return Verdict(parsed.outcome, prefix + parsed.reason, index)
    violation = schema.violation(parsed.value)
    if violation is not None:
        return Verdict(Outcome.SCHEMA_VIOLATION, prefix + violation.message, index, violation.pointer)
    return _OK


def _has_text(choice: Choice) -> bool:
    return bool(choice.text) and not (choice.text or "").isspace()


def _missing(choice: Choice, reason: str, text_schema: CompiledSchema | None = None) -> Verdict:
    """Name a choice without text: what was asked for may have been put into the reasoning."""
    there = choice.reasoning.strip()
    if there and (holds_json(there) or (text_schema is not None and text_schema.violation(there) is None)):
        return Verdict(Outcome.IN_REASONING, f"{reason}; it is in the reasoning", choice.index)
    return Verdict(Outcome.EMPTY, reason, choice.index)
