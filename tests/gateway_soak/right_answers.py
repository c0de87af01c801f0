"""Right answers that look odd: none of them may be refused, and their bytes are the engine's.

Owns one table of functions, each named for what it does.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.gateway_soak import wires
from tests.gateway_soak.carriers import ChatText, Spoken, ToolCall
from tests.gateway_soak.drafts import Draft, Kind, Table
from tests.gateway_soak.wires import Framing, Wire

TABLE = Table()


@TABLE.entry(Kind.RIGHT, "ok")
def as_engines_answer(given: Draft) -> Wire:
    return given.wire()


@TABLE.entry(Kind.RIGHT, "ok", streamed=False)
def body_with_white_space_and_more_members(given: Draft) -> Wire:
    body = {**given.body(), "system_fingerprint": None, "kv_transfer_params": None, "metrics": {"a": [1]}}
    return wires.whole(b"\n" + json.dumps(body, indent=3).encode() + b"\n")


@TABLE.entry(Kind.RIGHT, "ok", streamed=False)
def body_with_wide_characters(given: Draft) -> Wire:
    return wires.whole(json.dumps(given.body(), ensure_ascii=False).encode("utf-8", "surrogatepass"))


@TABLE.entry(Kind.RIGHT, "ok", streamed=False)
def body_in_chunks(given: Draft) -> Wire:
    pieces = wires.cut(json.dumps(given.body()).encode(), given.rng)
    wire = wires.streamed(pieces)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    return dataclasses.replace(wire, pieces=(head, *wire.pieces[1:]))


@TABLE.entry(Kind.RIGHT, "ok")
def white_space_around(given: Draft) -> Wire | None:
    if given.sample is None:
        return None
    around = given.rng.choice((" ", "\n", "\r\n", "\t"))
    return given.with_one(Spoken(f"{around}{json.dumps(given.asked.value)}{around}"))


@TABLE.entry(Kind.RIGHT, "ok")
def every_character_escaped(given: Draft) -> Wire | None:
    if given.sample is None:
        return None
    text = json.dumps(given.asked.value)
    names = "".join(f"\\u{ord(c):04x}" if c.isalpha() else c for c in '"name"')
    return given.with_one(Spoken(text.replace('"name"', names)))


@TABLE.entry(Kind.RIGHT, "ok")
def reasoning_beside(given: Draft) -> Wire | None:
    if not isinstance(given.way.carrier, ChatText):
        return None
    extra = {given.rng.choice(("reasoning", "reasoning_content")): "First {think}, then answer."}
    return given.wire([Spoken(one.text, one.finish, extra) for one in given.choices])


@TABLE.entry(Kind.RIGHT, "ok", "plain", seen_as=["vllm#39929", "vllm#56086"])
def tool_called_instead(given: Draft) -> Wire | None:
    if not isinstance(given.way.carrier, ChatText) or isinstance(given.way.carrier, ToolCall):
        return None
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    given.request |= {"tools": [tool], "tool_choice": "auto"}
    call: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    extra = {"tool_calls": [{**call, "index": 0} if given.streamed else call]}
    return given.wire([Spoken(None, "tool_calls", extra) for _ in given.choices])


@TABLE.entry(Kind.RIGHT, "ok", streamed=True, seen_as=["jcode#609"])
def other_line_ends(given: Draft) -> Wire:
    given.framing = Framing(line_end=given.rng.choice((b"\r\n", b"\r")))
    return given.wire()


@TABLE.entry(Kind.RIGHT, "ok", streamed=True, seen_as=["jcode#609"])
def comments_and_names(given: Draft) -> Wire:
    given.framing = Framing(comments=True, named=True, field_name=given.rng.choice((b"data:", b"data: ")))
    return given.wire()


@TABLE.entry(Kind.RIGHT, "ok", streamed=True)
def byte_order_mark_first(given: Draft) -> Wire:
    given.framing = Framing(byte_order_mark=True)
    return given.wire()


@TABLE.entry(Kind.RIGHT, "ok", streamed=True)
def wide_characters_cut(given: Draft) -> Wire:
    payloads = [json.dumps(chunk, ensure_ascii=False).encode("utf-8", "replace") for chunk in given.chunks()]
    data = wires.events(payloads, given.framing, given.rng)
    return wires.streamed([data[at : at + 1] for at in range(len(data))] if len(data) < 600 else [data])


@TABLE.entry(Kind.RIGHT, "ok", streamed=True)
def no_end_mark(given: Draft) -> Wire:
    return given.events(given.chunks(), done=False)


@TABLE.entry(Kind.RIGHT, "ok", streamed=True)
def usage_and_empty_chunks(given: Draft) -> Wire | None:
    if not given.way.has_choices:
        return None
    chunks = given.chunks()
    for _ in range(given.rng.randrange(1, 4)):
        chunks.insert(given.rng.randrange(len(chunks) + 1), {**chunks[0], "choices": []})
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return given.events([*chunks, {**chunks[0], "choices": [], "usage": usage}])


@TABLE.entry(Kind.RIGHT, "ok", streamed=True)
def more_after_the_end_mark(given: Draft) -> Wire | None:
    if not given.way.has_choices:
        return None
    payload = wires.events(given.chunks(), given.framing, given.rng)
    return wires.streamed([payload, b": bye\n\ndata: {}\n\n"])
