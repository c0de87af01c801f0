"""GET /debug/replicas on the metrics port: what this gateway thinks of each replica.

Owns the route; the form is in `replicas.report`. It is not on the API's port: addresses and names of pods are
for operators, and the operator reads it from every gateway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def replicas_route(report: Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]) -> Route:
    """Return the route; `report` is called for each request, and awaited where it must be fetched."""

    async def replicas(_request: Request) -> JSONResponse:
        found = report()
        whole = await found if isinstance(found, Awaitable) else found
        return JSONResponse(whole, headers={"cache-control": "no-store"})

    return Route("/debug/replicas", replicas)
