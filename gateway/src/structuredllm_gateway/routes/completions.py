"""POST /v1/chat/completions, /v1/completions, /v1/responses and /v1/embeddings.

Owns the route functions; everything else is in the relay.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from structuredllm_gateway.relay.exchange import Route
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.routes.response import RelayResponse
from structuredllm_gateway.settings import LimitSettings

_MODEL = {"type": "string", "description": "A name that GET /v1/models lists."}
_STREAM = {"type": "boolean", "default": False}
_STRUCTURED_OUTPUTS = {
    "type": "object",
    "description": "vLLM's structured output: one of json, regex, choice, grammar, structural_tag, "
    "json_object; the first three and the last are validated.",
}
_TOOLS = {
    "type": "array",
    "items": {"type": "object"},
    "description": "Arguments of `strict` functions, and of calls that tool_choice requires, are validated.",
}


def _body(**properties: Any) -> dict[str, Any]:
    """Return what is documented of a request body; more fields pass to the engine."""
    schema = {
        "type": "object",
        "required": ["model"],
        "additionalProperties": True,
        "properties": {"model": _MODEL, **properties},
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_BODY = _body(
    stream=_STREAM,
    response_format={
        "type": "object",
        "description": "OpenAI's structured output; json_schema and json_object are validated.",
    },
    structured_outputs=_STRUCTURED_OUTPUTS,
    tools=_TOOLS,
)
_RESPONSES_BODY = _body(
    stream=_STREAM,
    text={"type": "object", "description": "`format` of type json_schema or json_object is validated."},
    structured_outputs=_STRUCTURED_OUTPUTS,
    tools=_TOOLS,
)
_EMBEDDINGS_BODY = _body(input={"description": "What to embed."})


def build_router(relay: Relay, limits: LimitSettings) -> APIRouter:
    """Return the routes over one relay."""
    router = APIRouter(tags=["completions"])

    @router.post(Route.CHAT.path, summary="Chat completion", openapi_extra=_BODY)
    async def chat_completions() -> Response:
        """Relay a chat completion to a serving replica; structured answers are validated."""
        return RelayResponse(relay, Route.CHAT, limits)

    @router.post(Route.COMPLETIONS.path, summary="Text completion", openapi_extra=_BODY)
    async def completions() -> Response:
        """Relay a text completion to a serving replica; structured answers are validated."""
        return RelayResponse(relay, Route.COMPLETIONS, limits)

    @router.post(Route.RESPONSES.path, summary="Response", openapi_extra=_RESPONSES_BODY)
    async def responses() -> Response:
        """Relay a request of the responses API to a serving replica; structured answers are validated."""
        return RelayResponse(relay, Route.RESPONSES, limits)

    @router.post(Route.EMBEDDINGS.path, summary="Embeddings", openapi_extra=_EMBEDDINGS_BODY)
    async def embeddings() -> Response:
        """Relay a request for embeddings to a serving replica, as it is."""
        return RelayResponse(relay, Route.EMBEDDINGS, limits)

    return router
