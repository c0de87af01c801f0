"""A stream's verdict, byte for byte: the same however it is cut in parts, never ok when it broke off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.openai.requests import parse_completion_request
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.relay.exchange import Exchange, Incoming, Record
from structuredllm_gateway.relay.streams import StreamRelay
from structuredllm_gateway.upstream.endpoints import ModelPool, ValidationMode
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.outcomes import FAULTS, Outcome
from structuredllm_gateway.validation.validators import ValidatorCache
from tests.unit.gateway.support import SCHEMA
from tests.unit.gateway.wire import DONE, call, chunk, event_stream, message, response

_RIGHT = '{"name": "\u00e9\U0001f600", "age": 1}'
_SCHEMA = ValidatorCache(1).compiled(SCHEMA)
_TEXT = Expectation(_SCHEMA)
_CALL = Expectation(
    has_structure=False, known_tools=frozenset({"f"}), arguments={"f": _SCHEMA}, requires_call=True
)


async def _no_body() -> bytes:
    return b""


def _exchange(route: Route, expected: Expectation | None) -> Exchange:
    request = parse_completion_request(json.dumps({"model": "toy", "stream": True}).encode(), route)
    incoming = Incoming(route, "id", {}, _no_body)
    pool = ModelPool("toy", ValidationMode.ENFORCE)
    return Exchange(incoming, request, b"", pool, expected, 0.0, Record(0.0))


def _played(
    parts: Sequence[bytes], route: Route = Route.CHAT, expected: Expectation | None = _TEXT
) -> tuple[Outcome, bytes]:
    relay = StreamRelay(_exchange(route, expected), 100_000)
    given_out = b""
    for part in parts:
        given_out += relay.feed(part)
        if relay.ended:
            break
    else:
        given_out += relay.finish()
    return relay.outcome, given_out + relay.closing()


def _chat(text: str, finish: str | None = "stop", **delta: Any) -> bytes:
    pieces = [chunk(content=text[at : at + 3]) for at in range(0, len(text), 3)]
    return b"".join([chunk(role="assistant", content=""), *pieces, chunk(finish), DONE])


def _calls(arguments: str) -> bytes:
    pieces = [chunk(**call(arguments[at : at + 3])) for at in range(0, len(arguments), 3)]
    return b"".join([chunk(**call("", "f")), *pieces, chunk("tool_calls"), DONE])


def _response(text: str, status: str = "completed") -> bytes:
    return b"".join(event_stream([text[:5], text[5:]], response(message(text), status=status)))


_STREAMS: list[tuple[bytes, Route, Expectation | None, Outcome]] = [
    (_chat(_RIGHT), Route.CHAT, _TEXT, Outcome.OK),
    (_chat(_RIGHT).replace(b"\n", b"\r\n"), Route.CHAT, _TEXT, Outcome.OK),
    (b": ping\n\n" + _chat(_RIGHT).replace(b"\n\n", b"\n: x\n\n"), Route.CHAT, _TEXT, Outcome.OK),
    (_chat(_RIGHT + " done"), Route.CHAT, _TEXT, Outcome.TRAILING_OR_LEADING_TEXT),
    (_chat(_RIGHT[:-1]), Route.CHAT, _TEXT, Outcome.NOT_JSON),
    (_chat(_RIGHT[:9], "length"), Route.CHAT, _TEXT, Outcome.TRUNCATED),
    (_calls(_RIGHT), Route.CHAT, _CALL, Outcome.OK),
    (_calls("{}"), Route.CHAT, _CALL, Outcome.SCHEMA_VIOLATION),
    (_response(_RIGHT), Route.RESPONSES, _TEXT, Outcome.OK),
    (_response("{}"), Route.RESPONSES, _TEXT, Outcome.SCHEMA_VIOLATION),
    (_response(_RIGHT[:4], "incomplete"), Route.RESPONSES, _TEXT, Outcome.TRUNCATED),
    (_chat("free text"), Route.CHAT, None, Outcome.PLAIN),
    (_response("free text"), Route.RESPONSES, None, Outcome.PLAIN),
]
_BROKEN = {Outcome.STREAM_EMPTY, Outcome.STREAM_ABORTED, Outcome.STREAM_ERROR}


@pytest.mark.parametrize(("wire", "route", "expected", "outcome"), _STREAMS)
def test_two_parts_cut_at_any_byte_have_the_verdict_of_the_whole(
    wire: bytes, route: Route, expected: Expectation | None, outcome: Outcome
) -> None:
    whole = _played([wire], route, expected)
    assert whole[0] is outcome
    for at in range(1, len(wire)):
        found, given_out = _played([wire[:at], wire[at:]], route, expected)
        assert found is outcome
        if outcome not in FAULTS:
            # A line end that was cut in two may go with either event.
            assert given_out.translate(None, b"\r\n") == whole[1].translate(None, b"\r\n")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(_STREAMS), st.lists(st.integers(0, 2000), max_size=12))
def test_any_number_of_parts_has_the_verdict_of_the_whole(
    stream: tuple[bytes, Route, Expectation | None, Outcome], cuts: list[int]
) -> None:
    wire, route, expected, outcome = stream
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assert _played([wire[a:b] for a, b in pairwise(places)], route, expected)[0] is outcome


@pytest.mark.parametrize(("wire", "route", "expected", "outcome"), _STREAMS)
def test_a_stream_that_ends_at_any_byte_is_never_wrongly_ok(
    wire: bytes, route: Route, expected: Expectation | None, outcome: Outcome
) -> None:
    ends: set[Outcome] = set()
    for at in range(len(wire)):
        found, given_out = _played([wire[:at]], route, expected)
        ends.add(found)
        # Once the finish reason is there, the answer is known to be whole without the end mark.
        assert found in _BROKEN or found is outcome
        if found in _BROKEN:
            assert b'"error"' in given_out
            assert b'"finish_reason": "' not in wire[:at].replace(b"\r", b"").rpartition(b"\n\n")[0]
    assert {Outcome.STREAM_EMPTY, Outcome.STREAM_ABORTED} <= ends | {outcome}


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(_STREAMS), st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_a_stream_with_any_bytes_changed_has_a_class_and_an_end(
    stream: tuple[bytes, Route, Expectation | None, Outcome], place: int, other: bytes
) -> None:
    wire, route, expected, _ = stream
    at = min(place, len(wire) - 1)
    found, given_out = _played([wire[:at] + other + wire[at + len(other) :]], route, expected)
    assert given_out.endswith(b"data: [DONE]\n\n" if route is Route.CHAT else found.value.encode() + b"\n\n")
