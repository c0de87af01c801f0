"""What is known to go wrong on the wire between a gateway and its engines, and the class of each.

Owns the cases: `test_failures.py` plays every one against a gateway in Enforce, and docs/reference/
gateway-failures.md is written from here (`python -m tools.gen_gateway_failures`). The sources are the public
reports in which it was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.support import SCHEMA, structured
from tests.unit.gateway.wire import DONE, Raw, call, chat, chunk, event, event_stream, message, response

Wire = Mapping[str, Any] | list[bytes] | Raw
RIGHT = '{"name": "a", "age": 1}'


@dataclass(frozen=True)
class Case:
    """One way to fail.

    Attributes:
        source: reports, `owner#number`.
        what: what the engine (or the client) does.
        wire: what the engine sends; None = it must not be asked.
        outcome: the class.
        status: what the client gets in Enforce with nothing given out yet.
        request: the body.
        route: where it is sent.
        attempts: how often engines are asked, with two replicas that do the same.
    """

    source: str
    what: str
    wire: Wire | None
    outcome: Outcome
    status: int
    request: Mapping[str, Any] = field(default_factory=structured)
    route: Route = Route.CHAT
    attempts: int = 2


@dataclass(frozen=True)
class Elsewhere:
    """A way to fail that takes more than one answer to show: `test` names the test that does."""

    source: str
    what: str
    result: str
    test: str


def _of(schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return structured(schema, **more)


def _outputs(**outputs: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [], "structured_outputs": outputs}


def _tools(**more: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    return {"model": "toy", "messages": [], "tools": [tool], "tool_choice": "required", **more}


def _error(message_: str, kind: str, status: int) -> Raw:
    inner = {"message": message_, "type": kind, "param": None, "code": status}
    return Raw(status, json.dumps({"error": inner}).encode())


def _responses(**more: Any) -> dict[str, Any]:
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    return {"model": "toy", "input": "x", "text": text, **more}


def _two_branches() -> dict[str, Any]:
    branches = [{"properties": {"x": {"minimum": 10}}}, {"properties": {"y": {"type": "string"}}}]
    return _of({"type": "object", "allOf": branches})


def _doubled(times: int) -> dict[str, Any]:
    """Return a schema in which each of a chain of definitions refers twice to the next."""
    last = {f"d{times}": {"type": "string"}}
    chain = {
        f"d{n}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{n + 1}"} for name in "ab"}}
        for n in range(times)
    }
    return {"$defs": chain | last, "$ref": "#/$defs/d0"}


_ERROR_EVENT = b'data: {"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}\n\n'
_STREAMED = structured(stream=True)

CASES: Sequence[Case] = (
    Case("vllm#44993, vllm#48516", "`{{` after the reasoning", chat("{" + RIGHT), Outcome.NOT_JSON, 502),
    Case(
        "vllm#50948, vllm#19222",
        "the JSON is in the reasoning, the content is null",
        chat(None, reasoning_content=RIGHT),
        Outcome.IN_REASONING,
        502,
    ),
    Case(
        "vllm#19222",
        "the same in a stream",
        [chunk(reasoning=RIGHT[:9]), chunk(reasoning=RIGHT[9:]), chunk("stop"), DONE],
        Outcome.IN_REASONING,
        502,
        _STREAMED,
    ),
    Case(
        "vllm#44012",
        "the responses API does not constrain its text",
        response(message("Sure, here it is.")),
        Outcome.NOT_JSON,
        502,
        _responses(),
        Route.RESPONSES,
    ),
    Case(
        "vllm#49173",
        "`ignore_eos` with a structure",
        None,
        Outcome.REQUEST_REJECTED,
        400,
        structured(ignore_eos=True),
        attempts=0,
    ),
    Case(
        "vllm#29632",
        "text after the JSON, because the mask allows everything once the grammar has ended",
        chat(RIGHT + "\nI hope this helps."),
        Outcome.TRAILING_OR_LEADING_TEXT,
        502,
    ),
    Case(
        "openai-python#3263",
        "a stream that is cut by the token limit",
        [chunk(content='{"name": "a'), chunk("length"), DONE],
        Outcome.TRUNCATED,
        200,
        _STREAMED,
        attempts=1,
    ),
    Case(
        "openai-python#1763, openai-python#3589",
        "an answer that is cut by the token limit",
        chat('{"name": "abc', "length"),
        Outcome.TRUNCATED,
        200,
        attempts=1,
    ),
    Case(
        "xgrammar#800, xgrammar#880, xgrammar#286",
        "a raw control character, which a grammar with `maxLength` admits",
        chat('{"s": "a\tb"}'),
        Outcome.NOT_JSON,
        502,
        _of({"type": "object", "properties": {"s": {"type": "string", "maxLength": 8}}}),
    ),
    Case(
        "xgrammar#286",
        "the escape instead, which is right",
        chat('{"s": "a\\tb"}'),
        Outcome.OK,
        200,
        _of({"type": "object", "properties": {"s": {"type": "string", "maxLength": 8}}}),
        attempts=1,
    ),
    Case(
        "vllm#45592, vllm#45599, xgrammar#966",
        "`maxLength` beside `pattern` is not enforced",
        chat('{"s": "aaaaaaaaaaaa"}'),
        Outcome.SCHEMA_VIOLATION,
        502,
        _of({"type": "object", "properties": {"s": {"type": "string", "pattern": "^a+$", "maxLength": 8}}}),
    ),
    Case(
        "vllm#56556, xgrammar#937",
        "`allOf` with two branches is not enforced",
        chat('{"x": 1, "y": 5}'),
        Outcome.SCHEMA_VIOLATION,
        502,
        _two_branches(),
    ),
    Case(
        "xgrammar#968",
        "`uniqueItems` is not enforced",
        chat('{"l": [1, 1]}'),
        Outcome.SCHEMA_VIOLATION,
        502,
        _of({"type": "object", "properties": {"l": {"type": "array", "uniqueItems": True}}}),
    ),
    Case(
        "xgrammar#968",
        "`contains` is not enforced",
        chat('{"l": [1, 1]}'),
        Outcome.SCHEMA_VIOLATION,
        502,
        _of({"type": "object", "properties": {"l": {"type": "array", "contains": {"const": 2}}}}),
    ),
    Case(
        "vllm#38696, vllm#44619, vllm#54497, xgrammar#212, xgrammar#802",
        "white space until the token limit",
        chat('{"q":' + " " * 900, "length"),
        Outcome.WHITESPACE_RUNAWAY,
        502,
        attempts=1,
    ),
    Case(
        "vllm#17313, vllm#19270",
        "an invalid regular expression, which has killed engines",
        None,
        Outcome.SCHEMA_REJECTED,
        400,
        _outputs(regex="foo**"),
        attempts=0,
    ),
    Case(
        "vllm#17248, TRT-LLM#9078",
        "an invalid schema, which has killed engines",
        None,
        Outcome.SCHEMA_REJECTED,
        400,
        _of({"type": "objekt"}),
        attempts=0,
    ),
    Case(
        "vllm#17313",
        "the engine fails on it all the same",
        _error("EngineDeadError", "InternalServerError", 500),
        Outcome.UPSTREAM_5XX,
        500,
        attempts=1,
    ),
    Case(
        "sglang#7639",
        "the grammar backend refuses a recursive schema",
        _error("Failed to compile the json schema: recursion", "BadRequestError", 400),
        Outcome.SCHEMA_REJECTED,
        400,
        _of({"type": "object", "properties": {"next": {"$ref": "#"}}}),
        attempts=1,
    ),
    Case(
        "anthropic-sdk#1185",
        "a sub-schema that is referenced so often that its grammar is too large",
        None,
        Outcome.SCHEMA_REJECTED,
        400,
        _of(_doubled(24)),
        attempts=0,
    ),
    Case(
        "vllm#11312",
        "one of three choices is wrong",
        {
            "choices": [
                {"index": index, "message": {"content": text}, "finish_reason": "stop"}
                for index, text in enumerate((RIGHT, RIGHT, "{}"))
            ]
        },
        Outcome.SCHEMA_VIOLATION,
        502,
        structured(n=3),
    ),
    Case(
        "vllm#11312",
        "one of three choices is missing in a stream",
        [chunk("stop", index, content=RIGHT) for index in (0, 2)] + [DONE],
        Outcome.EMPTY,
        502,
        structured(n=3, stream=True),
    ),
    Case(
        "vllm#11363",
        "the schema is under the wrong key",
        None,
        Outcome.SCHEMA_REJECTED,
        400,
        {"model": "toy", "messages": [], "response_format": {"type": "json_schema", "schema": SCHEMA}},
        attempts=0,
    ),
    Case(
        "vllm#9900",
        "the object around a schema is given as the schema: as one it allows everything",
        None,
        Outcome.SCHEMA_REJECTED,
        400,
        _outputs(json={"name": "x", "schema": SCHEMA}),
        attempts=0,
    ),
    Case(
        "vllm#39929, vllm#56086, vllm#16313",
        "a call beside a structure: the text is judged only without one",
        chat(None, "tool_calls", **call("{}", "f")),
        Outcome.PLAIN,
        200,
        structured(tools=_tools()["tools"]),
        attempts=1,
    ),
    Case(
        "litellm#10674, vllm#19493",
        "JSON that violates its schema",
        chat("{}"),
        Outcome.SCHEMA_VIOLATION,
        502,
    ),
    Case(
        "vllm#55441",
        "the same, where a count of what parses calls it right",
        chat('{"name": 1, "age": "1"}'),
        Outcome.SCHEMA_VIOLATION,
        502,
    ),
    Case(
        "aibrix#671",
        "the engine answers 401",
        _error("no key", "AuthenticationError", 401),
        Outcome.UPSTREAM_4XX,
        401,
        attempts=1,
    ),
    Case("production-stack#749", "the engine never answers", Raw(200, None), Outcome.TIMEOUT, 504),
    Case("production-stack#1017", "the body is no JSON", None, Outcome.REQUEST_REJECTED, 400, {}, attempts=0),
    Case("vllm-ascend#15108", "200 with an empty body", Raw(200, b""), Outcome.UPSTREAM_5XX, 502, attempts=1),
    Case(
        "vllm-ascend#15108",
        "400 where a stream was asked for",
        _error("prompt too long", "BadRequestError", 400),
        Outcome.UPSTREAM_4XX,
        400,
        _STREAMED,
        attempts=1,
    ),
    Case(
        "dynamo#8430, OmniRoute#8210, any-llm#847",
        "an error event inside a stream that answered 200",
        [chunk(role="assistant", content=""), _ERROR_EVENT, DONE],
        Outcome.STREAM_ERROR,
        502,
        _STREAMED,
    ),
    Case(
        "vllm#18780",
        "the grammar rejected a sampled token: an error without a name",
        _error("Internal server error", "InternalServerError", 500),
        Outcome.GRAMMAR_REJECTED,
        502,
    ),
    Case(
        "vllm#10781, vllm#15274",
        "the last part of a call's arguments is lost",
        [chunk(**call("", "f")), chunk(**call(RIGHT[:-1])), chunk("tool_calls"), DONE],
        Outcome.NOT_JSON,
        502,
        _tools(stream=True),
    ),
    Case(
        "vllm#24509",
        "parts of a call's arguments are sent twice",
        [chunk(**call(RIGHT, "f")), chunk(**call(RIGHT)), chunk("tool_calls"), DONE],
        Outcome.TRAILING_OR_LEADING_TEXT,
        502,
        _tools(stream=True),
    ),
    Case(
        "vllm#34887",
        "a call's arguments lose their leading `{\"`",
        chat(None, "tool_calls", **call(RIGHT[2:], "f")),
        Outcome.NOT_JSON,
        502,
        _tools(),
    ),
    Case(
        "llama.cpp#22722, vllm#42696",
        "a call's name comes only in the first chunk, or with the first `{`",
        [
            chunk(**call(RIGHT[:1], "f")),
            *(chunk(**call(one)) for one in RIGHT[1:]),
            chunk("tool_calls"),
            DONE,
        ],
        Outcome.OK,
        200,
        _tools(stream=True),
        attempts=1,
    ),
    Case(
        "jcode#609",
        "two events glued without a blank line",
        [chunk(content=RIGHT, finish="stop").strip() + b"\n" + DONE],
        Outcome.STREAM_ERROR,
        502,
        _STREAMED,
    ),
    Case(
        "jcode#609",
        "CRLF, comments, events split anywhere",
        [
            part
            for whole in (
                b": ping\r\n\r\n",
                chunk(content=RIGHT, finish="stop").replace(b"\n", b"\r\n"),
                DONE.replace(b"\n", b"\r\n"),
            )
            for part in (whole[:5], whole[5:])
        ],
        Outcome.OK,
        200,
        _STREAMED,
        attempts=1,
    ),
    Case(
        "vllm#52418",
        "a stream of responses without its last event, after text was given out",
        event_stream(["{"], None),
        Outcome.STREAM_ABORTED,
        200,
        _responses(stream=True),
        Route.RESPONSES,
        attempts=1,
    ),
    Case(
        "vllm#52418",
        "a stream of a chat without a finish reason",
        [chunk(content=RIGHT), DONE],
        Outcome.STREAM_ABORTED,
        502,
        _STREAMED,
    ),
    Case("vllm#52418", "200 and a stream without any event", [], Outcome.STREAM_EMPTY, 502, _STREAMED),
    Case(
        "vllm#52418",
        "a stream of responses that says it has failed",
        [event("response.failed", response=response(status="failed", error={"message": "CUDA error"}))],
        Outcome.STREAM_ERROR,
        502,
        _responses(stream=True),
        Route.RESPONSES,
    ),
    Case("sglang#25388", "finish reason `abort`", chat(RIGHT, "abort"), Outcome.FINISH_ABNORMAL, 502),
)

ELSEWHERE: Sequence[Elsewhere] = (
    Elsewhere(
        "vllm#57490",
        "the pieces of a call or text are cut at other places",
        "the same verdict for every cut",
        "test_failures.py: test_every_cut_of_a_stream_has_the_same_class",
    ),
    Elsewhere(
        "vllm#55473",
        "an answer that is far too long",
        "`upstream_5xx` or `stream_error`, the rest is not read",
        "test_failures.py: test_an_answer_above_the_limit_ends_in_time",
    ),
    Elsewhere(
        "lmdeploy#4167",
        "what one request asked for is left for the next",
        "the next one is `plain`",
        "test_failures.py: test_nothing_of_a_request_is_left_for_the_next",
    ),
    Elsewhere(
        "production-stack#612",
        "good bodies among broken ones, at once",
        "200 for the good, 400 for the broken",
        "test_failures.py: test_broken_bodies_do_not_touch_good_ones",
    ),
    Elsewhere(
        "litellm#38610",
        "two replicas fail after their first chunk, before any text",
        "one error with a status, no chunk",
        "test_failures.py: test_two_replicas_that_fail_before_any_text_give_one_clean_error",
    ),
)
