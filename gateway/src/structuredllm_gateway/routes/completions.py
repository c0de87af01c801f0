"""POST /v1/chat/completions and /v1/completions.

Owns two route functions; everything else is in the relay.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from structuredllm_gateway.relay.exchange import Route
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.routes.response import RelayResponse
from structuredllm_gateway.settings import LimitSettings

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "additionalProperties": True,
                    "properties": {
                        "model": {"type": "string", "description": "A name that GET /v1/models lists."},
                        "stream": {"type": "boolean", "default": False},
                        "response_format": {
                            "type": "object",
                            "description": "OpenAI's structured output; a json_schema is validated.",
                        },
                        "structured_outputs": {
                            "type": "object",
                            "description": "vLLM's structured output; `json` is validated.",
                        },
                    },
                }
            }
        },
    }
}


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

    return router
