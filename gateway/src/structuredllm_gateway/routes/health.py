"""GET /health, /ready (and their z-aliases) and /version.

Owns the difference: /health says that the process answers and never looks further; /ready says that it may
get traffic. Ready does not ask for a serving replica: without one a client is better told so (503, Retry-
After) than refused a connection, and a chart can be installed before the first resource.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import JSONResponse

from structuredllm_gateway import __version__
from structuredllm_gateway.upstream.endpoints import EndpointSource


def build_router(
    endpoints: EndpointSource, is_draining: Callable[[], bool], stale_seconds: Callable[[], float]
) -> APIRouter:
    """Return the routes; `is_draining` and `stale_seconds` are asked each time."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", include_in_schema=False)
    @router.get("/health", summary="Is the process alive")
    async def health() -> JSONResponse:
        """Answer."""
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", include_in_schema=False)
    @router.get(
        "/ready",
        summary="May the process get traffic",
        responses={503: {"description": "Not yet, or no more: `status` says which."}},
    )
    async def ready() -> JSONResponse:
        """Answer 200 once discovery has seen everything and until the shutdown begins, else 503."""
        view = endpoints.snapshot()
        status = "draining" if is_draining() else "ok" if view.synced else "discovering"
        detail = {
            "status": status,
            # Endpoints are then the last known ones: the gateway goes on with them.
            "stale": view.stale,
            "stale_seconds": round(stale_seconds(), 1),
            "models": len(view.pools),
            "serving": sum(len(pool.serving) for pool in view.pools.values()),
        }
        return JSONResponse(detail, status_code=200 if status == "ok" else 503)

    @router.get("/version", summary="Version of the gateway")
    async def version() -> dict[str, str]:
        """Answer the version."""
        return {"version": __version__}

    return router
