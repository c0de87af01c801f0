"""Answers that are none: error statuses, bodies and streams that break, lie or never come.

Owns one table of functions, each named for what it does. None of these may end in a 200 that looks complete.
"""

from __future__ import annotations

import json
from typing import Any

from tests.gateway_soak import wires
from tests.gateway_soak.carriers import Spoken
from tests.gateway_soak.drafts import Draft, Kind, Table
from tests.gateway_soak.wires import Ending, Wire

TABLE = Table()

_REJECT = wires.error_body("Internal server error", "InternalServerError", 500)
_NAMED_REJECT = wires.error_body("A token was refused.", "grammar_rejected", "grammar_rejected")
_STREAM = ("stream_error", "stream_aborted", "stream_empty")
_BROKEN = (*_STREAM, "connect_error")
# Cut between two choices, an answer lacks the second.
_CUT = (*_BROKEN, "empty")


@TABLE.entry(Kind.BROKEN, "grammar_rejected", seen_as=["vllm#45014", "vllm#38663"])
def grammar_reject_as_a_status(given: Draft) -> Wire:
    return wires.json_of(given.rng.choice((_REJECT, _NAMED_REJECT)), status=500)


@TABLE.entry(Kind.BROKEN, "grammar_rejected", seen_as=["vllm#38663"])
def ended_by_an_error(given: Draft) -> Wire:
    text = given.choices[0].text or ""
    return given.with_one(Spoken(text[: given.rng.randrange(len(text))], "error"))


@TABLE.entry(Kind.BROKEN, "grammar_rejected")
def state_machine_named_in_a_status(_given: Draft) -> Wire:
    return wires.error("Failed to advance FSM for request", "InternalServerError", 500)


@TABLE.entry(Kind.BROKEN, "upstream_5xx", seen_as=["vllm#17313"])
def failed_status(given: Draft) -> Wire:
    status = given.rng.choice((500, 501, 502, 504))
    if given.rng.random() < 0.5:
        return wires.whole(b"upstream failure", status=status, content_type="text/plain")
    return wires.error("CUDA error", "BackendError", status)


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "overloaded")
def overloaded_status(_given: Draft) -> Wire:
    return wires.error("busy", "ServiceUnavailable", 503, headers={"retry-after": "1"})


@TABLE.entry(Kind.BROKEN, "schema_rejected", seen_as=["sglang#7639", "TRT-LLM#9078"])
def schema_refused(_given: Draft) -> Wire:
    return wires.error("The schema is not supported by the grammar", "BadRequestError", 400)


@TABLE.entry(Kind.BROKEN, "upstream_4xx", seen_as=["aibrix#671", "vllm-ascend#15108"])
def refused_status(given: Draft) -> Wire:
    return wires.error("no", "Error", given.rng.choice((400, 401, 403, 404, 409, 413, 422, 429)))


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "grammar_rejected")
def other_success_or_redirect(given: Draft) -> Wire:
    body = json.dumps(given.body()).encode()
    status = given.rng.choice((201, 202, 206, 302, 307))
    return wires.whole(body, status=status, headers={"location": "http://127.0.0.1:1/"})


@TABLE.entry(Kind.BROKEN, "upstream_5xx", *_STREAM, seen_as=["vllm-ascend#15108"])
def nothing_with_200(_given: Draft) -> Wire:
    return wires.whole(b"")


@TABLE.entry(Kind.BROKEN, "upstream_5xx", *_STREAM)
def page_with_200(given: Draft) -> Wire:
    page = given.rng.choice((b"<html>It works!</html>", b"null", b"[]", b'"ok"', b"{", b"\xff\xfe\x00"))
    return wires.whole(page, content_type=given.rng.choice(("text/html", "application/json")))


@TABLE.entry(Kind.BROKEN, "grammar_rejected", "upstream_5xx", *_STREAM, seen_as=["sglang#25388"])
def error_body_with_200(given: Draft) -> Wire:
    return wires.json_of(given.rng.choice((_REJECT, wires.error_body("gone", "BackendError", 500))))


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "empty", streamed=False)
def odd_choices(given: Draft) -> Wire | None:
    if not given.way.has_choices:
        return None
    odd: Any = given.rng.choice((None, [], {}, "text", [None], [[]], [3], ["{}"]))
    return wires.json_of({**given.body(), "choices": odd})


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "empty", streamed=False)
def odd_output(given: Draft) -> Wire | None:
    if given.way.has_choices:
        return None
    parts: Any = given.rng.choice(("x", [None], [{"type": "output_text", "text": 3}], {}, []))
    message = {"type": "message", "content": parts}
    odd: Any = given.rng.choice((None, {}, "text", [None], [], [message]))
    return wires.json_of({**given.body(), "output": odd})


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "empty", streamed=False)
def odd_content(given: Draft) -> Wire | None:
    if not given.way.has_choices:
        return None
    odd: Any = given.rng.choice(
        ([], {}, 1, True, [{"type": "text", "text": "{}"}], {"parsed": given.asked.value})
    )
    choice = {"index": 0, "message": {"role": "assistant", "content": odd}, "text": odd}
    return wires.json_of({**given.body(), "choices": [{**choice, "finish_reason": "stop"}]})


@TABLE.entry(Kind.BROKEN, "upstream_5xx", "empty", streamed=False)
def no_message(given: Draft) -> Wire | None:
    if not given.way.has_choices or given.way.name == "tool strict":
        return None
    return wires.json_of({**given.body(), "choices": [{"index": 0, "finish_reason": "stop"}]})


@TABLE.entry(Kind.BROKEN, "upstream_5xx", streamed=False)
def no_utf8(given: Draft) -> Wire | None:
    if not given.way.has_choices:
        return None
    choice = {"message": {"role": "assistant", "content": "@@"}, "text": "@@", "finish_reason": "stop"}
    body = json.dumps({**given.body(), "choices": [choice]}).encode()
    return wires.whole(
        body.replace(b"@@", given.rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f")))
    )


@TABLE.entry(Kind.BROKEN, *_BROKEN, "upstream_5xx", "timeout", seen_as=["production-stack#706"])
def no_answer_at_all(given: Draft) -> Wire:
    return Wire((), b"", given.rng.choice((Ending.CLOSE, Ending.ABORT)))


@TABLE.entry(Kind.BROKEN, *_BROKEN, "upstream_5xx")
def no_http(given: Draft) -> Wire:
    noise = given.rng.choice((b"\x16\x03\x01\x02\x00", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/9.9 abc\r\n\r\n"))
    return Wire((noise,), b"", Ending.CLOSE)


@TABLE.entry(Kind.BROKEN, *_BROKEN, "upstream_5xx", streamed=False)
def length_that_is_too_long(given: Draft) -> Wire:
    body = json.dumps(given.body()).encode()
    ending = given.rng.choice((Ending.CLOSE, Ending.ABORT))
    return wires.whole(body, declared=len(body) + given.rng.choice((1, 100, 10**6)), ending=ending)


@TABLE.entry(Kind.BROKEN, *_BROKEN, "upstream_5xx", streamed=False)
def length_that_is_too_short(given: Draft) -> Wire:
    body = json.dumps(given.body()).encode()
    return wires.whole(body, declared=given.rng.randrange(len(body)), ending=Ending.CLOSE)


@TABLE.entry(Kind.BROKEN, *_BROKEN, "upstream_5xx", streamed=False)
def head_that_breaks_off(given: Draft) -> Wire:
    wire = given.wire()
    return Wire((wire.pieces[0][: given.rng.randrange(1, 40)],), b"", Ending.CLOSE)


@TABLE.entry(Kind.BROKEN, "timeout", seen_as=["production-stack#749"])
def no_answer_for_ever(given: Draft) -> Wire | None:
    # Each one costs the gateway's whole deadline.
    return Wire((), b"", Ending.HANG) if given.rng.random() < 0.02 else None


@TABLE.entry(Kind.BROKEN, "timeout", *_STREAM, streamed=True, seen_as=["vllm#18780"])
def stream_that_falls_silent(given: Draft) -> Wire | None:
    if given.rng.random() > 0.02:
        return None
    pieces = wires.cut(_some_of(given), given.rng)
    return wires.streamed(pieces, ended=False, ending=Ending.HANG)


def _some_of(given: Draft) -> bytes:
    """Return the begin of a stream that stops before its last choice has ended."""
    chunks = given.chunks()
    kept = chunks[: given.rng.randrange(1, len(chunks))]
    return wires.events(kept, given.framing, given.rng, done=False)


@TABLE.entry(Kind.BROKEN, *_CUT, streamed=True, seen_as=["vllm#52418"])
def stream_that_ends_early(given: Draft) -> Wire:
    return wires.streamed(wires.cut(_some_of(given), given.rng))


@TABLE.entry(Kind.BROKEN, *_CUT, streamed=True)
def stream_that_breaks_off(given: Draft) -> Wire:
    ending = given.rng.choice((Ending.CLOSE, Ending.ABORT))
    return wires.streamed(wires.cut(_some_of(given), given.rng), ended=False, ending=ending)


@TABLE.entry(Kind.BROKEN, *_CUT, streamed=True)
def stream_with_a_length_too_long(given: Draft) -> Wire:
    data = _some_of(given)
    ending = given.rng.choice((Ending.CLOSE, Ending.ABORT))
    return wires.streamed([data], declared=len(data) + given.rng.choice((1, 10**6)), ending=ending)


@TABLE.entry(Kind.BROKEN, *_CUT, streamed=True)
def stream_with_a_length_too_short(given: Draft) -> Wire:
    data = wires.events(given.chunks(), given.framing, given.rng)
    # At the end of an event, and before the one that ends the last choice.
    first_end = data.index(b"\n\n") + 2
    short = data.rindex(b"\n\n", 0, max(first_end, given.end_of(data))) + 2
    return wires.streamed([data], declared=short, ending=Ending.CLOSE)


@TABLE.entry(Kind.BROKEN, *_CUT, streamed=True)
def stream_cut_at_a_byte(given: Draft) -> Wire:
    payload = wires.events(given.chunks(), given.framing, given.rng)
    # Before the end of the event that ends the last choice.
    return wires.streamed([payload[: given.rng.randrange(given.end_of(payload))]])


@TABLE.entry(Kind.BROKEN, *_STREAM, streamed=True)
def end_mark_without_an_end(given: Draft) -> Wire:
    chunks = given.chunks([Spoken(one.text, None) for one in given.choices])
    return given.events(chunks)


@TABLE.entry(Kind.BROKEN, *_STREAM, "empty", streamed=True, seen_as=["vllm-ascend#15108"])
def stream_without_events(given: Draft) -> Wire:
    return wires.streamed(
        [given.rng.choice((b"", b"\n\n", b": ping\n\n", b"data: [DONE]\n\n", b"data:\n\n"))]
    )


@TABLE.entry(Kind.BROKEN, "grammar_rejected", streamed=True, seen_as=["vllm#45014", "dynamo#8430"])
def grammar_reject_inside(given: Draft) -> Wire:
    return _with_event(given, given.rng.choice((_REJECT, _NAMED_REJECT)))


@TABLE.entry(Kind.BROKEN, *_STREAM, streamed=True, seen_as=["dynamo#8430", "OmniRoute#8210", "litellm#38610"])
def error_inside(given: Draft) -> Wire:
    error: dict[str, Any] = given.rng.choice(
        (
            wires.error_body("out of memory", "BackendError", 500),
            {"error": "worker died"},
            {"error": {"message": "gone"}, "choices": []},
            {"object": "error", "message": "old shape", "type": "Failure", "code": 500},
        )
    )
    return _with_event(given, error)


@TABLE.entry(Kind.BROKEN, *_STREAM, streamed=True, seen_as=["jcode#609"])
def event_that_is_no_json(given: Draft) -> Wire:
    noise = given.rng.choice(
        (b"{broken", b"[1]", b"null", b'"text"', b"{}}", b"\xff\xff", b'{"choices":[{]}')
    )
    return _with_event(given, noise)


@TABLE.entry(Kind.BROKEN, *_STREAM, "upstream_5xx", streamed=True)
def odd_chunk(given: Draft) -> Wire:
    odd: Any = given.rng.choice(
        (
            {"choices": {}},
            {"choices": "text"},
            {"choices": [None]},
            {"choices": [[]]},
            {"choices": [{"index": [0], "delta": {"content": "x"}, "text": "x"}]},
            {"choices": [{"index": {"a": 1}, "delta": {"content": "x"}, "text": "x"}]},
            {"choices": [{"index": "0", "delta": {"content": "x"}, "text": "x"}]},
            {"choices": [{"index": 0, "delta": {"content": ["x"]}, "text": ["x"]}]},
            {"choices": [{"index": 0, "delta": {"content": {"t": "x"}}, "text": {"t": "x"}}]},
        )
    )
    return _with_event(given, odd)


def _with_event(given: Draft, extra: Any) -> Wire:
    """Put an event somewhere before the answer has ended."""
    chunks: list[Any] = given.chunks()
    chunks.insert(given.rng.randrange(len(chunks)), extra)
    return given.events(chunks, done=given.rng.random() < 0.7)
