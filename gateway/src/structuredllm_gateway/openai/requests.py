"""The few fields of a completion request that the gateway reads; the body itself is forwarded as it came.

Owns the reading of model, stream and the structure asked for. Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from structuredllm_gateway.errors import RequestError, SchemaRejectedError
from structuredllm_gateway.validation.validators import Schema

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Structure:
    """The structure a request asks for.

    Attributes:
        schema: what the answer must satisfy; None = asked for in a way that is not validated (regex, choice,
            grammar, structural tag): the engine guides it, the gateway only tells truncated and empty ones.
        pointer: JSON pointer of the schema in the request body.
    """

    schema: Schema | None
    pointer: str


@dataclass(frozen=True)
class CompletionRequest:
    """What the gateway needs to know of a chat or text completion request."""

    model: str
    stream: bool
    structure: Structure | None


def parse_completion_request(
    body: bytes, inspect: Callable[[Mapping[str, Any]], None] | None = None
) -> CompletionRequest:
    """Read a request body; `inspect` sees the whole of it before anything in it is looked at.

    Raises:
        RequestError: not a JSON object, no model, or a field of a wrong kind; `param` names it.
    """
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The request body is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(whole, dict):
        raise RequestError("The request body must be a JSON object.", code="invalid_json")
    if inspect is not None:
        inspect(whole)
    model = whole.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError(
            "The request names no model; set `model` to one that GET /v1/models lists.",
            param="model",
            code="missing_model",
        )
    stream = whole.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError("`stream` must be true or false.", param="stream")
    return CompletionRequest(model, bool(stream), requested_structure(whole))


def requested_structure(body: Mapping[str, Any]) -> Structure | None:
    """Return the structure a request asks for, wherever it asks for it; None when it asks for none.

    Read are `response_format` (json_schema, json_object), vLLM's `structured_outputs`, and the older
    `guided_json`. Asking twice is allowed when both ask for the same.

    Raises:
        RequestError: a field has a wrong kind, or two fields ask for different structures.
    """
    asked = [
        found
        for found in (
            _of_response_format(body.get("response_format")),
            _of_structured_outputs(body.get("structured_outputs")),
            _of_schema(body.get("guided_json"), "/guided_json"),
        )
        if found is not None
    ]
    if not asked:
        return None
    first = asked[0]
    for other in asked[1:]:
        if other.schema != first.schema or other.schema is None:
            raise RequestError(
                f"The request asks for two different structures, at {first.pointer} and at {other.pointer}; "
                "ask for one.",
                param=other.pointer,
            )
    return first


def _of_response_format(value: Any) -> Structure | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(ANY_OBJECT, "/response_format")
    if kind == "structural_tag":
        return Structure(None, "/response_format")
    if kind != "json_schema":
        raise RequestError(
            "`response_format` must be an object whose `type` is text, json_object, json_schema or "
            "structural_tag.",
            param="response_format",
        )
    wrapper = value.get("json_schema")
    found = None
    if isinstance(wrapper, dict):
        found = _of_schema(wrapper.get("schema"), "/response_format/json_schema/schema")
    if found is None:
        raise SchemaRejectedError(
            "`response_format` of type json_schema needs a schema in `json_schema.schema`.",
            param="/response_format/json_schema/schema",
        )
    return found


def _of_structured_outputs(value: Any) -> Structure | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestError("`structured_outputs` must be an object.", param="structured_outputs")
    found = _of_schema(value.get("json"), "/structured_outputs/json")
    if found is not None:
        return found
    if value.get("json_object"):
        return Structure(ANY_OBJECT, "/structured_outputs/json_object")
    for name in ("regex", "choice", "grammar", "structural_tag"):
        if value.get(name) is not None:
            return Structure(None, f"/structured_outputs/{name}")
    return None


def _of_schema(value: Any, pointer: str) -> Structure | None:
    """Read a schema; vLLM takes one as an object or as its JSON text; both are read."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise SchemaRejectedError(
                f"The schema at {pointer} is not JSON: {error}.", param=pointer
            ) from error
    if not isinstance(value, dict | bool):
        raise SchemaRejectedError(
            f"The schema at {pointer} must be a JSON Schema: an object or a boolean.", param=pointer
        )
    return Structure(value, pointer)
