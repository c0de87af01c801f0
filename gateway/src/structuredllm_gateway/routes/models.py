"""GET /v1/models and /v1/models/{id}: the models that discovery knows.

Owns the listing in OpenAI's shape; no engine is asked.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from structuredllm_gateway.errors import ModelNotFoundError
from structuredllm_gateway.keys.gatekeeper import Grant
from structuredllm_gateway.telemetry.visit import SCOPE_KEY, Visit
from structuredllm_gateway.upstream.endpoints import EndpointSource


def build_router(endpoints: EndpointSource) -> APIRouter:
    """Return the routes over one source."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", summary="List models")
    async def list_models(request: Request) -> dict[str, Any]:
        """List the known models that the caller may use, whether or not a replica serves them now."""
        grant = _grant(request)
        names = (name for name in sorted(endpoints.snapshot().pools) if grant.allows(name))
        return {"object": "list", "data": [_model(name) for name in names]}

    # :path because served names may contain slashes (org/model).
    @router.get("/v1/models/{model_id:path}", summary="Show a model")
    async def show_model(model_id: str, request: Request) -> dict[str, Any]:
        """Show one model."""
        if model_id not in endpoints.snapshot().pools or not _grant(request).allows(model_id):
            raise ModelNotFoundError(
                f"The model {model_id[:128]!r} does not exist here; GET /v1/models lists those that do.",
                param="model",
            )
        return _model(model_id)

    return router


def _grant(request: Request) -> Grant:
    visit: Visit = request.scope[SCOPE_KEY]
    return visit.grant


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "structuredllm"}
