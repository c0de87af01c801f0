"""GET /metrics and what else is for operators only: an ASGI app of its own for its own port.

Owns the exposition; the metrics are in `telemetry.metrics`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def create_metrics_app(
    registry: CollectorRegistry, *more: Route, refresh: Callable[[], Awaitable[None]] | None = None
) -> Starlette:
    """Return an app that exposes `registry`, and the given routes beside it.

    `refresh` is awaited first, where the values must be fetched.
    """

    async def metrics(request: Request) -> Response:
        if refresh is not None:
            await refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return Starlette(routes=[Route("/metrics", metrics), *more])
