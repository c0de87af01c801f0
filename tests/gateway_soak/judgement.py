"""Whether the gateway gave a client what it is owed, by what the engine sent and an independent reading.

Owns the comparison. Must not import the gateway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.gateway_soak.cases import Case
from tests.gateway_soak.drafts import Kind
from tests.gateway_soak.reader import Heard, read_stream, read_whole

_VERDICT = re.compile(rb": structuredllm outcome=\w+\n\n")
_END_MARK = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class Fault(StrEnum):
    """How the gateway can be wrong."""

    WRONG_200 = "wrong_200"
    FALSE_ALARM = "false_alarm"
    CHANGED_BYTES = "changed_bytes"
    WRONG_CLASS = "wrong_class"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True)
class Got:
    """What a client got; `broken` = why its reading failed, if it did."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    broken: str = ""


@dataclass(frozen=True)
class Judged:
    """One judgement: the class that the gateway gave, and the fault if there is one."""

    outcome: str
    fault: Fault | None = None
    detail: str = ""


def judged(case: Case, got: Got) -> Judged:
    """Judge one answer."""
    if got.broken:
        return Judged("", Fault.NO_ANSWER, got.broken)
    is_stream = got.headers.get("content-type", "").startswith("text/event-stream")
    heard = read_stream(got.body) if is_stream else read_whole(got.body)
    outcome = _outcome(heard, got, is_stream)
    passed = got.status == 200 and heard.error is None and (heard.done or not is_stream)
    fault = _fault(case, heard, outcome, passed=passed)
    if fault is None and passed and _comparable(got.body) != _comparable(case.wire.payload):
        fault = Fault.CHANGED_BYTES
    if fault is None and outcome not in case.outcomes:
        fault = Fault.WRONG_CLASS
    if fault is None and is_stream and not heard.done:
        fault = Fault.NO_ANSWER
    if fault is None:
        return Judged(outcome)
    wanted = "|".join(sorted(case.outcomes))
    detail = f"{case.title}: {fault}: HTTP {got.status} {outcome or '-'}, right is {case.kind} {wanted}"
    return Judged(outcome, fault, detail)


def _fault(case: Case, heard: Heard, outcome: str, *, passed: bool) -> Fault | None:
    if case.kind is Kind.BROKEN or (case.kind is Kind.FAULT and case.enforced):
        # Where answers are only watched, one without anything in it may pass, named.
        watched = not case.enforced and outcome == "empty"
        return Fault.WRONG_200 if passed and not watched else None
    if not passed:
        return Fault.FALSE_ALARM
    # Whatever the table says: what is called right must be right to a reader who knows nothing of it.
    if outcome == "ok" and not all(case.asked.accepts(text) for text in heard.texts.values()):
        return Fault.WRONG_200
    return None


def _outcome(heard: Heard, got: Got, is_stream: bool) -> str:
    if not is_stream:
        return got.headers.get("x-structuredllm-outcome", "")
    return heard.verdicts[0] if len(heard.verdicts) == 1 else "|".join(heard.verdicts)


def _comparable(body: bytes) -> bytes:
    """Return what both sides must have in common: all but the gateway's verdict and what ends a stream."""
    without = _VERDICT.sub(b"", body)
    end = _END_MARK.search(without)
    return (without if end is None else without[: end.start()]).rstrip(b"\r\n")
