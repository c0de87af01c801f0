"""The short form of the soak (`make soak-gateway` is the long one), and the sharpness of its judgement."""

from __future__ import annotations

import json
from collections import Counter

from tests.gateway_soak.cases import CORRUPTIONS, Case, case_of
from tests.gateway_soak.drafts import Kind
from tests.gateway_soak.judgement import Fault, Got, judged
from tests.gateway_soak.run import soak
from tests.gateway_soak.wires import Ending

# To repeat: `python -m tests.gateway_soak --seed 20 --answers 2000`, one case with --first and --answers 1.
_SEED = 20
_ANSWERS = 2000


async def test_two_thousand_answers_none_wrong_and_no_false_alarm() -> None:
    report = await soak(seed=_SEED, numbers=iter(range(_ANSWERS)))
    found = report.as_json()
    print(json.dumps(found["summary"]))
    assert (found["faults"], report.details) == ({}, [])
    summary = found["summary"]
    assert (summary["wrong_200"], summary["false_alarms"], summary["other_faults"]) == (0, 0, 0)
    # The draw has to reach everything, or the zeros say nothing.
    assert report.cases == _ANSWERS
    assert report.classes.keys() == CORRUPTIONS.keys()
    assert report.right > _ANSWERS // 4
    assert report.refused > _ANSWERS // 3
    assert report.streamed > _ANSWERS // 4


def test_a_case_can_be_drawn_again() -> None:
    for number in (0, 7, 399):
        first, second = case_of(3, number), case_of(3, number)
        assert (first.request, first.wire, first.title) == (second.request, second.wire, second.title)
    assert case_of(3, 8).wire != case_of(4, 8).wire


def _as_sent(case: Case) -> Got:
    """What a client gets through something that passes everything on and calls it good."""
    form = "text/event-stream" if case.streamed else "application/json"
    body = case.wire.payload
    if case.streamed:
        body += b": structuredllm outcome=ok\n\ndata: [DONE]\n\n"
    return Got(200, {"content-type": form, "x-structuredllm-outcome": "ok"}, body)


def test_a_gateway_that_lets_everything_pass_is_found_out() -> None:
    found: Counter[tuple[Kind, Fault | None]] = Counter()
    for number in range(700):
        case = case_of(5, number)
        can_pass = case.wire.payload and case.wire.ending is Ending.KEEP and "plain" not in case.outcomes
        if case.enforced and can_pass:
            found[case.kind, judged(case, _as_sent(case)).fault] += 1
    assert found[Kind.FAULT, Fault.WRONG_200] > 100
    assert {fault for kind, fault in found if kind is Kind.FAULT} == {Fault.WRONG_200}
    assert found[Kind.BROKEN, Fault.WRONG_200] > 20
    # A body with an error in it is no answer, whoever passes it on; its class is what is wrong then.
    assert {fault for kind, fault in found if kind is Kind.BROKEN} <= {Fault.WRONG_200, Fault.WRONG_CLASS}
    assert {fault for kind, fault in found if kind is Kind.RIGHT} <= {None, Fault.WRONG_CLASS}
    assert found[Kind.RIGHT, None] > 100


def test_a_gateway_that_refuses_everything_is_found_out() -> None:
    body = b'{"error": {"message": "no"}}'
    for number in range(300):
        case = case_of(6, number)
        got = Got(502, {"content-type": "application/json", "x-structuredllm-outcome": "ok"}, body)
        fault = judged(case, got).fault
        assert fault is (Fault.FALSE_ALARM if case.kind in (Kind.RIGHT, Kind.NAMED) else fault)
        assert fault is not None


def test_a_gateway_that_changes_bytes_is_found_out() -> None:
    changed = 0
    for number in range(300):
        case = case_of(7, number)
        if case.kind is Kind.RIGHT and not case.streamed:
            sent = case.wire.payload
            got = Got(200, {"x-structuredllm-outcome": "ok"}, json.dumps(json.loads(sent), indent=4).encode())
            fault = judged(case, got).fault
            changed += fault is Fault.CHANGED_BYTES
    assert changed > 20
