"""Every known way to fail on the wire, played against a gateway in Enforce: its class, status and tries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.openai.answers import StreamAssembler
from structuredllm_gateway.openai.sse import SseParser
from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.failure_cases import CASES, ELSEWHERE, RIGHT, Case
from tests.unit.gateway.support import plain, settings_with, structured
from tests.unit.gateway.wire import DONE, Engine, call, chat, chunk, serving


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source.split(',')[0]} {case.what[:40]}")
async def test_failure_has_its_class(case: Case) -> None:
    wire = case.wire if case.wire is not None else {}
    if isinstance(wire, list) and case.attempts == 2:
        wire = [b"".join(wire)]  # all at once, so that nothing is out before the verdict
    engines = Engine(wire), Engine(wire)
    limits = settings_with(upstream={"try_timeout_seconds": 0.3 if case.outcome is Outcome.TIMEOUT else 5.0})
    async with serving(*engines, settings=limits) as run:
        answer = await run.ask(case.request, case.route.path)
        line = run.request_lines[0]
        assert (line["outcome"], line["attempts"]) == (case.outcome.value, case.attempts)
        assert sum(len(engine.got) for engine in engines) == case.attempts
        counted = run.metric(
            "requests_total",
            model=line["model"],
            route=case.route.value,
            code=str(line["status"]),
            outcome=case.outcome.value,
        )
        assert counted == 1
        assert answer.status_code == case.status
        if answer.status_code == 200:
            passes = case.outcome in (Outcome.OK, Outcome.PLAIN, Outcome.TRUNCATED)
            assert ('"type":"error"' not in answer.text) is passes


def test_tests_of_what_takes_more_than_one_answer_are_there() -> None:
    for other in ELSEWHERE:
        assert other.test.split(": ")[1] in globals()


_TEXT = [chunk(role="assistant"), *(chunk(content=one) for one in RIGHT), chunk("stop"), DONE]
_CALL = [chunk(**call("", "f")), *(chunk(**call(one)) for one in RIGHT), chunk("tool_calls"), DONE]


@pytest.mark.parametrize("wire", [_TEXT, _CALL], ids=["text", "call"])
def test_every_cut_of_a_stream_has_the_same_class(wire: list[bytes]) -> None:
    data = b"".join(wire).replace(b'"n', b'"\xc3\xa9n')
    whole = _choices([data])
    for at in range(len(data)):
        assert _choices([data[:at], data[at:]]) == whole


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, len(RIGHT)), max_size=6))
def test_pieces_of_any_length_make_the_same_answer(lengths: list[int]) -> None:
    pieces, rest = [], RIGHT
    for length in lengths:
        pieces.append(rest[:length])
        rest = rest[length:]
    text = b"".join(chunk(content=piece) for piece in [*pieces, rest]) + chunk("stop")
    calls = chunk(**call("", "f")) + b"".join(chunk(**call(piece)) for piece in [*pieces, rest])
    assert _choices([text])[0].text == RIGHT
    assert _choices([calls])[0].tool_calls[0].arguments == RIGHT


def _choices(parts: list[bytes]) -> Any:
    parser, assembler = SseParser(10_000), StreamAssembler(10_000)
    for part in parts:
        for found in parser.feed(part):
            if found.data is not None and not found.is_done:
                assembler.feed(json.loads(found.data))
    return assembler.choices()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_above_the_limit_ends_in_time(stream: bool) -> None:
    piece = "x" * 600
    whole: Any = [chunk(content=piece)] * 100 + [chunk("stop"), DONE] if stream else chat(piece * 100)
    limits = settings_with(upstream={"max_answer_bytes": 1024, "max_attempts": 1})
    async with serving(Engine(whole), settings=limits) as run:
        await run.ask(structured(stream=stream))
        expected = "stream_error" if stream else "upstream_5xx"
        assert run.request_lines[0]["outcome"] == expected


async def test_nothing_of_a_request_is_left_for_the_next() -> None:
    async with serving(Engine(chat(RIGHT), chat("free text"), chat("free text"))) as run:
        for body in (structured(), plain(), plain()):
            assert (await run.ask(body)).status_code == 200
        assert [line["outcome"] for line in run.request_lines] == ["ok", "plain", "plain"]
        assert [line["schema"] is None for line in run.request_lines] == [False, True, True]


async def test_broken_bodies_do_not_touch_good_ones() -> None:
    async with serving(Engine(chat(RIGHT))) as run:
        path = "/v1/chat/completions"
        good = [run.ask(structured()) for _ in range(8)]
        broken = [run.http.post(path, content=b'{"model": "toy", "messages": [') for _ in range(8)]
        answers = await asyncio.gather(*(one for pair in zip(good, broken, strict=True) for one in pair))
        assert [answer.status_code for answer in answers] == [200, 400] * 8


async def test_two_replicas_that_fail_before_any_text_give_one_clean_error() -> None:
    wire = [chunk(role="assistant"), b'data: {"error": {"message": "CUDA error", "code": 500}}\n\n', DONE]
    async with serving(Engine(wire), Engine(wire)) as run:
        answer = await run.ask(structured(stream=True))
        assert answer.status_code == 502
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "upstream_stream_error"
        assert answer.headers["x-structuredllm-attempts"] == "2"


@pytest.mark.parametrize("mode", [ValidationMode.OBSERVE, ValidationMode.OFF])
async def test_a_legacy_request_is_mapped_and_the_client_is_told(mode: ValidationMode) -> None:
    engine = Engine(chat("maybe"))
    async with serving(engine, mode=mode) as run:
        answer = await run.ask(plain(guided_choice=["yes", "no"]))
        outcome = "schema_violation" if mode is ValidationMode.OBSERVE else "plain"
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, outcome)
        expected = "guided_choice is deprecated: sent on as structured_outputs.choice"
        assert answer.headers["x-structuredllm-warning"] == expected
        sent = engine.got[0][1]
        assert sent == {**plain(), "structured_outputs": {"choice": ["yes", "no"]}}
        unvalidated = run.metric("unvalidated_total", model="toy", kind="off")
        assert unvalidated == (None if mode is ValidationMode.OBSERVE else 1)


async def test_a_grammar_passes_and_is_counted_as_not_validated() -> None:
    async with serving(Engine(chat("anything"))) as run:
        answer = await run.ask(plain(structured_outputs={"grammar": 'root ::= "a"'}))
        assert (answer.status_code, answer.headers["x-structuredllm-outcome"]) == (200, "plain")
        assert run.metric("unvalidated_total", model="toy", kind="grammar") == 1
        await run.ask(plain())
        assert run.metric("unvalidated_total", model="toy", kind="grammar") == 1
