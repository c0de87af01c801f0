"""Error bodies in OpenAI's shape: writing ours, reading the engines', telling a grammar reject from the rest.

Owns the shapes; pure, must not import I/O. `code` is always a string or null (vLLM sends the HTTP status as a
number), and an engine's error is passed on as it is, never wrapped into another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from structuredllm_gateway.errors import GatewayError, StructuredOutputError

_TYPES_BY_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
# An engine with the patch package names the cause in `type` (and again in `code`).
_NAMED_CAUSE = "grammar_"
_NAMED_REJECT = "grammar_rejected"
_SCHEMA_CAUSES = frozenset(
    {
        "grammar_dead_end",
        "grammar_unsupported",
        "grammar_compile_failed",
        "grammar_compile_timeout",
        "grammar_compile_memory",
    }
)
# vLLM 0.32 without it raises exactly this for a request whose finish reason is "error" (GenerationError),
# which on a structured request is a token that the grammar did not accept. There is no field that says so.
_REJECT_MESSAGE = "Internal server error"
_REJECT_TYPE = "InternalServerError"
_SCHEMA_WORDS = ("schema", "grammar", "structured", "guided", "response_format", "regex")
_MAX_MESSAGE = 2000


@dataclass(frozen=True)
class EngineError:
    """An error as an engine reported it; `type` is its own name for the kind, "" when it gave none."""

    message: str
    type: str
    param: str | None
    code: str | None

    @property
    def is_grammar_reject(self) -> bool:
        """Whether, on a structured request, this is a token that the grammar rejected."""
        if self.type.startswith(_NAMED_CAUSE):
            return self.type == _NAMED_REJECT
        exact = self.message == _REJECT_MESSAGE and self.type == _REJECT_TYPE
        return exact or "FSM" in self.message or "grammar" in self.message.lower()

    @property
    def is_schema_cause(self) -> bool:
        """Whether the engine named a cause that lies in the structure that was asked for."""
        return self.type in _SCHEMA_CAUSES

    @property
    def is_about_schema(self) -> bool:
        """Whether a refusal (4xx) of a structured request is about the structure it asked for."""
        text = f"{self.message} {self.param or ''}".lower()
        return self.is_schema_cause or any(word in text for word in _SCHEMA_WORDS)


def openai_type(status: int) -> str:
    """Return OpenAI's error type for an HTTP status."""
    return _TYPES_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_object(error: GatewayError, request_id: str | None = None) -> dict[str, Any]:
    """Return `{"error": {...}}` for a client."""
    inner = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    if isinstance(error, StructuredOutputError) and error.raw is not None:
        inner["raw"] = error.raw
    if request_id is not None:
        inner["request_id"] = request_id
    return {"error": inner}


def error_event_object(error: GatewayError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error as the responses API's `error` event has it, flat, with the usual object beside."""
    flat = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return {**flat, **error_object(error, request_id)}


def error_bytes(error: GatewayError, request_id: str | None = None) -> bytes:
    """Return `error_object` as JSON."""
    return orjson.dumps(error_object(error, request_id))


def engine_error(payload: Any) -> EngineError | None:
    """Read an error from a parsed body or stream chunk; None when it is not one.

    Read are `{"error": {...}}`, the older flat `{"object": "error", "message": ...}`, and the responses API's
    `error` and `response.failed` events.
    """
    if not isinstance(payload, dict):
        return None
    inner = payload.get("error")
    if inner is None and (payload.get("object") == "error" or payload.get("type") == "error"):
        inner = payload
    if inner is None and payload.get("type") == "response.failed":
        response = payload.get("response")
        inner = response.get("error") if isinstance(response, dict) else None
    if isinstance(inner, str):
        inner = {"message": inner}
    if not isinstance(inner, dict):
        return None
    param, code = inner.get("param"), inner.get("code")
    return EngineError(
        message=str(inner.get("message") or "the engine gave no message")[:_MAX_MESSAGE],
        type=str(inner.get("type") or ""),
        param=None if param is None else str(param),
        code=None if code is None else str(code),
    )


def engine_error_of_body(body: bytes) -> EngineError | None:
    """Read an error from a response body; None when the body is not an error in a known shape."""
    try:
        return engine_error(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
