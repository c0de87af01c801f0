"""GET /metrics and what else is for operators only: an ASGI app of its own for its own port.

Owns the exposition; the metrics are in `telemetry.metrics`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def create_metrics_app(registry: CollectorRegistry, *more: Route) -> Starlette:
    """Return an app that exposes `registry`, and the given routes beside it."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return Starlette(routes=[Route("/metrics", metrics), *more])
