"""What the OpenAPI document says of answers: the shape of errors, and the forms of a completion.

Owns descriptions only; the answers themselves are made elsewhere. Must not import parts that do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT_OR_NULL = {"type": ["string", "null"]}

ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "What is wrong, where, and what to do."},
                "type": {"type": "string", "description": "OpenAI's error type."},
                "param": {
                    **_TEXT_OR_NULL,
                    "description": "Field or JSON pointer at fault, in the request or in the answer.",
                },
                "code": {**_TEXT_OR_NULL, "description": "Name of the case."},
                "request_id": {"type": "string", "description": "As in the header x-request-id."},
            },
        }
    },
}
"""OpenAI's error body, as `openai.errors.error_object` writes it."""


def _errors(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ERROR_SCHEMA}}}


ERRORS: Mapping[int | str, dict[str, Any]] = {
    "4XX": _errors("The request is at fault: nothing was answered, and asking again would not help."),
    "5XX": _errors("No answer, or one that is not what the request asked for."),
}
"""For every route that answers in OpenAI's shape."""

COMPLETIONS: Mapping[int | str, dict[str, Any]] = {
    200: {
        "description": "The engine's answer, byte for byte; `x-structuredllm-outcome` is its class. "
        "With `stream` true, its events, a comment with the verdict, and an error event instead of the "
        "answer's end if it was not what the request asked for.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    **ERRORS,
}
"""For the routes that are relayed."""
