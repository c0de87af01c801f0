"""The bodies a fake engine answers with: error bodies, completion bodies, stream chunks.

Owns the wire shapes (as vLLM 0.32 sends them); knows nothing of sockets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.fakes.modes import FakeScript, Mode
from tests.fakes.schema_answers import UnsupportedSchemaError, answer_for, violation_of

PLAIN_TEXT = "Hello from the fake engine."


class BadRequestError(ValueError):
    """The request cannot be served: answered with HTTP 400 and this message."""


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's shape as vLLM writes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# A request whose grammar rejected a sampled token ends with the finish reason "error"; the server turns it
# into exactly this body (HTTP 500, or an event of a stream that already answered 200).
REJECT_BODY: Mapping[str, Any] = error_body("Internal server error", "InternalServerError", 500)
# An engine with the patch package says why, with the same status and in the same places.
NAMED_REJECT_BODY: Mapping[str, Any] = {
    "error": {
        "message": "The request's grammar refused a token that the engine had sampled.",
        "type": "grammar_rejected",
        "param": None,
        "code": "grammar_rejected",
        "request_id": "chatcmpl-fake",
    }
}


def reject_body(script: FakeScript) -> Mapping[str, Any]:
    """Return the body of a grammar reject."""
    return NAMED_REJECT_BODY if script.names_causes else REJECT_BODY


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema a request asks for: `{"type": "object"}` for json_object, None for plain text.

    Raises:
        BadRequestError: the structured part is malformed.
    """
    response_format = body.get("response_format")
    if response_format is not None:
        kind = response_format.get("type") if isinstance(response_format, Mapping) else None
        if kind == "json_schema":
            wrapper = response_format.get("json_schema")
            if not isinstance(wrapper, Mapping) or not isinstance(wrapper.get("schema"), Mapping):
                raise BadRequestError("response_format.json_schema.schema must be an object")
            schema: Mapping[str, Any] = wrapper["schema"]
            return schema
        if kind == "json_object":
            return {"type": "object"}
        if kind != "text":
            raise BadRequestError(f"response_format.type {kind!r} is not supported")
    outputs = body.get("structured_outputs")
    if isinstance(outputs, Mapping) and outputs.get("json") is not None:
        given = outputs["json"]
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except ValueError as error:
                raise BadRequestError(f"structured_outputs.json is not JSON: {error}") from error
        if not isinstance(given, Mapping):
            raise BadRequestError("structured_outputs.json must be a schema object")
        return given
    return None


def text_for(schema: Mapping[str, Any] | None, mode: Mode) -> tuple[str, str]:
    """Return (text, finish_reason) of the answer of an engine in `mode`.

    Raises:
        BadRequestError: the schema is outside what the generator understands.
    """
    if schema is None:
        return PLAIN_TEXT, "stop"
    try:
        right = json.dumps(answer_for(schema))
        match mode:
            case Mode.INVALID_JSON:
                return "{" + right, "stop"
            case Mode.SCHEMA_VIOLATION:
                return json.dumps(violation_of(schema)), "stop"
            case Mode.TRAILING_TEXT:
                return right + "\nI hope this helps!", "stop"
            case Mode.TRUNCATED:
                return right[: len(right) // 2], "length"
            case Mode.EMPTY:
                return "", "stop"
            case _:
                return right, "stop"
    except UnsupportedSchemaError as error:
        raise BadRequestError(f"schema not supported by the fake engine: {error}") from error


def completion(*, chat: bool, ident: str, model: str, text: str, finish: str, n: int) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    choices: list[dict[str, Any]] = []
    for index in range(n):
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices.append({"index": index, "finish_reason": finish, **content})
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": ident,
        "object": kind,
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": usage(text),
    }


def chunk(
    *, chat: bool, ident: str, model: str, index: int, delta: Mapping[str, Any], finish: str | None = None
) -> dict[str, Any]:
    """Return one stream chunk. `delta` is a chat delta; for a text completion its content is the text."""
    content: dict[str, Any] = {"delta": dict(delta)} if chat else {"text": delta.get("content", "")}
    choice = {"index": index, "finish_reason": finish, **content}
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": ident, "object": kind, "created": 0, "model": model, "choices": [choice]}


def usage(text: str) -> dict[str, int]:
    """Return made-up token counts; a token here is four characters."""
    completion_tokens = max(1, len(text) // 4)
    return {"prompt_tokens": 8, "completion_tokens": completion_tokens, "total_tokens": 8 + completion_tokens}
