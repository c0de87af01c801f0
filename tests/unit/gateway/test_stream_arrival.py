"""Streams cut at every byte: how bytes arrive changes no verdict, and a cut stream is never ok."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.errors import GatewayError, UpstreamConnectError
from structuredllm_gateway.openai.sse import SseParser
from structuredllm_gateway.upstream.endpoints import ValidationMode
from tests.gateway_soak.reader import Heard, read_stream
from tests.gateway_soak.schemas import read_strict
from tests.unit.gateway.in_process import InProcess, Reply
from tests.unit.gateway.support import plain, structured

# Wide characters, an escaped one, and what would be the framing if it were not inside of a string.
_TEXT = '{"a":"\u00e9\U0001f600","b":"data: [DONE]\\n\\u00e9"}'
_SCHEMA = {"type": "object", "required": ["a", "b"]}
# Two cuts further apart than this meet no state of the parser that one cut does not.
_NEAR = 4


def _chunk(text: str | None, finish: str | None = None, index: int = 0) -> bytes:
    # Short, because every byte is a place to cut: what has its default is left out.
    choice: dict[str, Any] = {"delta": {} if text is None else {"content": text}}
    if index:
        choice["index"] = index
    if finish:
        choice["finish_reason"] = finish
    return json.dumps({"choices": [choice]}, ensure_ascii=False, separators=(",", ":")).encode()


_WHOLE = (_chunk(""), _chunk(_TEXT[:7]), _chunk(_TEXT[7:]), _chunk(None, "stop"))
_ERROR = b'{"error":{"message":"gone","type":"BackendError","code":500}}'
_REJECT = b'{"error":{"message":"Internal server error","type":"InternalServerError","code":500}}'


def _events(payloads: Sequence[bytes], end: bytes = b"\n", field: bytes = b"data: ") -> bytes:
    return b"".join(field + payload + end * 2 for payload in payloads)


@dataclass(frozen=True)
class Stream:
    """What an engine sends, and the classes that are right for it where it is judged and where it is not."""

    name: str
    wire: bytes
    judged: tuple[str, ...]
    unjudged: tuple[str, ...] = ("plain",)


_DONE = b"[DONE]"
_BROKEN = ("stream_error", "stream_aborted", "stream_empty")
_STREAMS = (
    Stream("lf", _events([*_WHOLE, _DONE]), ("ok",)),
    Stream("crlf", _events([*_WHOLE, _DONE], b"\r\n"), ("ok",)),
    Stream("cr", _events([*_WHOLE, _DONE], b"\r"), ("ok",)),
    Stream("no space after the field name", _events([*_WHOLE, _DONE], field=b"data:"), ("ok",)),
    Stream("byte order mark", b"\xef\xbb\xbf" + _events([*_WHOLE[1:], _DONE]), ("ok",)),
    Stream(
        "comments and other fields",
        b": hi\n\nid: 1\nevent: message\nretry: 5\n" + _events(_WHOLE, field=b"id\nx\ndata: ") + b":\n\n",
        ("ok",),
    ),
    Stream(
        "data in two lines",
        _events([one.replace(b'"choices":', b'"choices":\ndata: ') for one in _WHOLE] + [_DONE]),
        ("ok",),
    ),
    Stream("two choices", _events([*_WHOLE, _chunk(_TEXT, None, 1), _chunk("", "stop", 1), _DONE]), ("ok",)),
    Stream("usage after the end", _events([*_WHOLE, b'{"choices":[],"usage":{}}', _DONE]), ("ok",)),
    Stream("no end mark", _events(_WHOLE), ("ok",)),
    Stream("no blank line at the end", _events(_WHOLE)[:-2], ("ok",)),
    Stream(
        "cut by the token limit", _events([_chunk(_TEXT[:9]), _chunk("", "length"), _DONE]), ("truncated",)
    ),
    Stream(
        "text after", _events([_chunk(_TEXT + "!"), _chunk("", "stop"), _DONE]), ("trailing_or_leading_text",)
    ),
    Stream("against the schema", _events([_chunk('{"a": 1}', "stop"), _DONE]), ("schema_violation",)),
    Stream("no text", _events([_chunk(""), _chunk(None, "stop"), _DONE]), ("empty",)),
    Stream("error first", _events([_ERROR, _DONE]), _BROKEN, _BROKEN),
    Stream("error inside", _events([*_WHOLE[:2], _ERROR, *_WHOLE[2:], _DONE]), _BROKEN, _BROKEN),
    Stream("grammar reject", _events([*_WHOLE[:2], _REJECT, _DONE]), ("grammar_rejected",), _BROKEN),
    Stream("never ended", _events([*_WHOLE[:3], _DONE]), _BROKEN),
    Stream("breaks off", _events(_WHOLE[:3]), _BROKEN, _BROKEN),
    Stream("no json", _events([_WHOLE[0], b"{broken", *_WHOLE[1:], _DONE]), _BROKEN),
    Stream("only an end mark", _events([_DONE]), (*_BROKEN, "empty")),
    Stream("only comments", b": ping\n\n: ping\n\n", _BROKEN, _BROKEN),
    Stream("nothing", b"", _BROKEN, _BROKEN),
)
_BODIES = {"judged": structured(_SCHEMA, stream=True), "unjudged": plain(stream=True)}


@dataclass(frozen=True)
class Seen:
    """What of an answer must not depend on how its bytes arrived; `said` = what a client may work with."""

    outcome: str
    error_code: str | None
    said: bytes | None


def _seen(reply: Reply) -> Seen:
    if reply.headers["content-type"].startswith("text/event-stream"):
        heard = read_stream(reply.body)
        # However it ends, it ends in order: one verdict, then the end mark.
        assert heard.done
        assert len(heard.verdicts) == 1
        if isinstance(heard.error, dict):
            return Seen(heard.verdicts[0], heard.error["code"], None)
        # A cut between CR and LF may leave the LF out: to a client the same line end.
        said = reply.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return Seen(heard.verdicts[0], heard.error, said)
    assert reply.status >= 400
    return Seen(reply.headers["x-structuredllm-outcome"], json.loads(reply.body)["error"]["code"], None)


def _cuts(data: bytes, places: Sequence[int]) -> list[bytes]:
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


# Without a judgement only the framing and the errors matter.
_BOTH_WAYS = (
    "lf",
    "crlf",
    "byte order mark",
    "no blank line at the end",
    "error inside",
    "breaks off",
    "nothing",
)


@pytest.mark.parametrize(
    ("stream", "asked"),
    [
        pytest.param(stream, asked, id=f"{stream.name}-{asked}")
        for stream in _STREAMS
        for asked in _BODIES
        if asked == "judged" or stream.name in _BOTH_WAYS
    ],
)
async def test_the_verdict_is_the_same_however_the_bytes_arrive(stream: Stream, asked: str) -> None:
    gateway, wire = InProcess(), stream.wire

    async def seen(chunks: Sequence[bytes]) -> Seen:
        return _seen(await gateway.ask(_BODIES[asked], chunks))

    expected = await seen([wire])
    assert expected.outcome in (stream.judged if asked == "judged" else stream.unjudged)
    assert await seen([wire[at : at + 1] for at in range(len(wire))]) == expected
    for at in range(1, len(wire)):
        assert await seen(_cuts(wire, [at])) == expected, at


@pytest.mark.parametrize(
    "name", ["crlf", "cr", "byte order mark", "data in two lines", "no blank line at the end"]
)
async def test_the_verdict_is_the_same_for_every_near_pair_of_cuts(name: str) -> None:
    (stream,) = [one for one in _STREAMS if one.name == name]
    gateway = InProcess()
    expected = _seen(await gateway.ask(_BODIES["judged"], [stream.wire]))
    for first in range(1, len(stream.wire)):
        for second in range(first, min(first + _NEAR, len(stream.wire))):
            reply = await gateway.ask(_BODIES["judged"], _cuts(stream.wire, [first, second]))
            assert _seen(reply) == expected, (first, second)


@dataclass(frozen=True)
class OneLoop:
    """A gateway and the loop that it is asked in, for tests that are no coroutines."""

    runner: asyncio.Runner
    gateway: InProcess


@pytest.fixture(scope="module")
def one_loop() -> Iterator[OneLoop]:
    with asyncio.Runner() as runner:
        yield OneLoop(runner, InProcess())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_STREAMS), st.sets(st.integers(1, 400), max_size=40), st.sampled_from(sorted(_BODIES)))
def test_the_verdict_is_the_same_for_any_cuts(
    one_loop: OneLoop, stream: Stream, places: set[int], asked: str
) -> None:
    async def ask() -> tuple[Seen, Seen]:
        cuts = _cuts(stream.wire, sorted(place for place in places if place < len(stream.wire)))
        whole = await one_loop.gateway.ask(_BODIES[asked], [stream.wire])
        return _seen(whole), _seen(await one_loop.gateway.ask(_BODIES[asked], cuts))

    expected, got = one_loop.runner.run(ask())
    assert got == expected


def _prefixes(stream: Stream) -> Iterator[tuple[bytes, GatewayError | None]]:
    for end in range(len(stream.wire) + 1):
        yield stream.wire[:end], None
        if end % 3 == 0:
            yield stream.wire[:end], UpstreamConnectError("It broke.")


def _is_right(heard: Heard) -> bool:
    try:
        return heard.is_complete and all(
            {"a", "b"} <= read_strict(text).keys() for text in heard.texts.values()
        )
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("lf", ValidationMode.ENFORCE),
        ("lf", ValidationMode.OBSERVE),
        ("cr", ValidationMode.ENFORCE),
        ("two choices", ValidationMode.ENFORCE),
        ("comments and other fields", ValidationMode.ENFORCE),
    ],
)
async def test_a_cut_stream_is_never_ok(name: str, mode: ValidationMode) -> None:
    (stream,) = [one for one in _STREAMS if one.name == name]
    gateway = InProcess(mode)
    outcomes = set()
    for prefix, failure in _prefixes(stream):
        reply = await gateway.ask(_BODIES["judged"], [prefix], failure=failure)
        seen = _seen(reply)
        outcomes.add(seen.outcome)
        if seen.outcome == "ok":
            # The engine had said all of it, at most the blank line of its last event is missing.
            said = (read_stream(prefix), read_stream(prefix + b"\n\n"))
            assert any(_is_right(heard) for heard in said), prefix[-60:]
            # And the client has it, readable.
            assert _is_right(read_stream(reply.body)), reply.body[-200:]
        else:
            assert seen.error_code is not None or mode is ValidationMode.OBSERVE
    assert "ok" in outcomes
    assert len(outcomes) > 1


@pytest.mark.parametrize("name", ["lf", "crlf", "error inside"])
async def test_a_cut_stream_without_structure_is_never_complete(name: str) -> None:
    (stream,) = [one for one in _STREAMS if one.name == name]
    gateway = InProcess()
    for prefix, failure in _prefixes(stream):
        seen = _seen(await gateway.ask(_BODIES["unjudged"], [prefix], failure=failure))
        if seen.outcome == "plain":
            said = (read_stream(prefix), read_stream(prefix + b"\n\n"))
            assert any(heard.is_complete for heard in said), prefix[-60:]
        else:
            assert seen.error_code is not None


async def test_a_stream_cut_before_a_choice_begins_is_never_ok() -> None:
    whole = _events([*_WHOLE, *(_chunk(_TEXT[at : at + 9], None, 1) for at in range(0, 36, 9))])
    body, gateway = structured(_SCHEMA, stream=True, n=2), InProcess()
    for end in range(len(whole) + 1):
        assert _seen(await gateway.ask(body, [whole[:end]])).outcome != "ok"


def test_the_first_event_is_read_behind_a_byte_order_mark_and_only_there() -> None:
    mark = b"\xef\xbb\xbf"
    first, second = SseParser(1000).feed(mark + b"data: 1\n\n" + mark + b"data: 2\n\n")
    assert (first.data, first.raw) == (b"1", mark + b"data: 1\n\n")
    assert second.data is None  # "\ufeffdata" is a field of another name


def test_an_event_that_ends_with_the_stream_gets_its_blank_line() -> None:
    parser = SseParser(1000)
    assert parser.feed(b"data: 1") == []
    rest = parser.finish()
    assert rest is not None
    assert (rest.data, rest.raw) == (b"1", b"data: 1\n\n")
