"""The FastAPI application: puts the parts together, nothing else.

Owns the wiring and the shape of errors outside of the relay. No globals: all state hangs on what is given in.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from structuredllm_gateway import __version__
from structuredllm_gateway.entrance import Entrance
from structuredllm_gateway.errors import GatewayError, RequestError, SettingsError
from structuredllm_gateway.keys.file import KeyFile, every
from structuredllm_gateway.keys.gatekeeper import Gatekeeper
from structuredllm_gateway.openai.errors import error_object, openai_type
from structuredllm_gateway.reception import Reception
from structuredllm_gateway.relay.exchange import Route
from structuredllm_gateway.relay.relay import Relay
from structuredllm_gateway.replicas.agreement import Agreement, Board
from structuredllm_gateway.replicas.recovery import Recovery
from structuredllm_gateway.replicas.report import ReplicaReport
from structuredllm_gateway.replicas.roster import Roster
from structuredllm_gateway.replicas.rules import pool_rules
from structuredllm_gateway.routes import completions, documents, health, models
from structuredllm_gateway.routes.direct import DirectRoute
from structuredllm_gateway.routes.response import RelayResponse
from structuredllm_gateway.settings import AuthMode, AuthSettings, Settings
from structuredllm_gateway.telemetry.logging import get_logger
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.telemetry.request_id import SCOPE_KEY, counted_ids
from structuredllm_gateway.telemetry.request_log import LineWriter
from structuredllm_gateway.upstream.client import UpstreamClient
from structuredllm_gateway.upstream.endpoints import EndpointSource
from structuredllm_gateway.upstream.prober import BurstProbe, Probe


class GatewayApp(FastAPI):
    """FastAPI, but the relayed routes are answered before its middleware and routing.

    They are declared as routes, too: for the API document, and for what is answered when the method is wrong.
    `relayed` maps paths to ASGI apps, `direct` raw paths to what a connection calls without ASGI.
    """

    relayed: Mapping[str, ASGIApp] = {}
    direct: Mapping[bytes, DirectRoute] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the life of the process."""
        if scope["type"] == "http" and scope["method"] == "POST":
            relayed = self.relayed.get(scope["path"])
            if relayed is not None:
                await relayed(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


class LifeState:
    """Whether the process is on its way out; set by whoever handles the signals."""

    def __init__(self) -> None:
        """Start as not draining."""
        self.draining = False


def create_app(
    settings: Settings,
    *,
    upstream: UpstreamClient,
    endpoints: EndpointSource,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
    new_id: Callable[[], str] | None = None,
    log: structlog.typing.FilteringBoundLogger | None = None,
    wall_clock: Callable[[], float] = time.time,
    probe: Probe | None = None,
    board: Board | None = None,
    line: LineWriter | None = None,
) -> FastAPI:
    """Build the gateway.

    Args:
        settings: the configuration.
        upstream: asks engines; closed when the app shuts down.
        endpoints: where engines are; followed while the app runs.
        clock: monotonic seconds.
        rng: breaks ties when picking.
        new_id: makes request ids, and the seeds that make bursts cold; default: random for the process, then
            counted.
        log: gets what happens, and one line per request where `line` is not given.
        line: writes the line of a request.
        wall_clock: seconds since 1970, for what people read.
        board: where the workers of a pod say what they have quarantined; None = there are no others.
        probe: decides whether a quarantine ends; default: a real burst.

    Returns:
        The app; `app.state.life` is its `LifeState`, `app.state.registry` its metrics registry.
    """
    logger = log if log is not None else get_logger("gateway")
    chance = rng if rng is not None else random.Random()  # noqa: S311 - ties and ids, no secret
    make_id = new_id if new_id is not None else counted_ids(uuid.uuid4().hex[:20])
    life = LifeState()
    metrics = Metrics(endpoints.snapshot)
    keys = metrics.key_file = key_file_of(settings.auth, logger)
    gatekeeper = Gatekeeper(
        None if keys is None else lambda: keys.table,
        clock=clock,
        assumed_tokens=settings.auth.assumed_tokens,
    )
    roster = Roster(
        endpoints,
        pool_rules(settings),
        max_waiting=settings.warmup.max_waiting,
        count_event=lambda model, reason: metrics.quarantine_events.labels(model, reason).inc(),
        clock=clock,
        rng=chance,
        log=logger,
    )
    metrics.watch(roster)
    burst = probe if probe is not None else BurstProbe(settings.probe, make_id)
    if isinstance(burst, BurstProbe):
        burst.listen(
            lambda model, verdict: metrics.probe_bursts.labels(metrics.model_label(model), verdict).inc()
        )
    agreement = None if board is None else Agreement(roster, board, clock)
    recovery = Recovery(roster, burst, clock=clock, log=logger, agreement=agreement)
    relay = Relay(
        settings=settings,
        upstream=upstream,
        endpoints=endpoints,
        roster=roster,
        metrics=metrics,
        clock=clock,
        log=logger,
        line=line,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        parts = [endpoints.run(), recovery.run()]
        if keys is not None:
            parts.append(keys.run(every(settings.auth.reload_seconds)))
        running = [asyncio.create_task(part) for part in parts]
        for task in running:
            task.add_done_callback(lambda task: _report_end(task, logger))
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await upstream.aclose()

    app = GatewayApp(
        title="structuredllm gateway",
        version=__version__,
        lifespan=lifespan,
        # The pages load scripts from elsewhere; the document itself is enough.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.life = life
    app.state.registry = metrics.registry
    app.state.replicas = ReplicaReport(
        roster, clock=clock, wall_clock=wall_clock, slow_start=settings.routing.slow_start_seconds
    )
    app.state.connections = metrics.connections
    app.include_router(
        completions.build_router(relay, settings.limits), responses=dict(documents.COMPLETIONS)
    )
    app.include_router(models.build_router(endpoints), responses=dict(documents.ERRORS))
    app.include_router(health.build_router(endpoints, lambda: life.draining, roster.stale_seconds))
    reception = Reception(gatekeeper, metrics, new_id=make_id, rng=chance, log=logger)
    entrance = partial(
        Entrance,
        reception=reception,
        metrics=metrics,
        clock=clock,
    )
    app.add_middleware(entrance)
    app.relayed = {route.path: entrance(RelayResponse(relay, route, settings.limits)) for route in Route}
    app.direct = {
        route.path.encode(): DirectRoute(
            relay, route, reception, metrics, max_bytes=settings.limits.max_body_bytes, clock=clock
        )
        for route in Route
    }
    _answer_in_openai_shape(app)
    return app


def check_chosen(settings: AuthSettings) -> None:
    """Check that somebody has said who may ask.

    Raises:
        SettingsError: nobody has.
    """
    if settings.mode is None:
        raise SettingsError(
            "auth.mode is not set: choose keys (with auth.keys_file, the hashes that `structuredllm-gateway "
            "hash-key` prints), or open to let everyone ask who reaches the port"
        )


def key_file_of(settings: AuthSettings, log: structlog.typing.FilteringBoundLogger) -> KeyFile | None:
    """Return the key file, None when everyone may ask.

    Raises:
        SettingsError: see `check_chosen`.
    """
    check_chosen(settings)
    return (
        None
        if settings.keys_file is None or settings.mode is AuthMode.OPEN
        else KeyFile(settings.keys_file, log)
    )


def registry_of(app: FastAPI) -> CollectorRegistry:
    """Return the metrics registry of an app made by `create_app`."""
    registry: CollectorRegistry = app.state.registry
    return registry


def replicas_of(app: FastAPI) -> ReplicaReport:
    """Return the report on the replicas of an app made by `create_app`."""
    report: ReplicaReport = app.state.replicas
    return report


def _answer_in_openai_shape(app: FastAPI) -> None:
    """Replace the framework's own error bodies (404, 405, 422, 500)."""

    def answered(
        request: Request, error: GatewayError, headers: dict[str, str] | None = None
    ) -> JSONResponse:
        body = error_object(error, request.scope.get(SCOPE_KEY))
        return JSONResponse(body, status_code=error.status, headers=headers)

    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> JSONResponse:
        return answered(request, error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        where = f"{request.method} {request.url.path}"
        messages = {
            404: (f"Unknown route: {where}.", "unknown_route"),
            405: (f"{where} is not allowed.", "method_not_allowed"),
        }
        message, code = messages.get(error.status_code, (str(error.detail), "http_error"))
        shaped = RequestError(message, code=code)
        shaped.status, shaped.type = error.status_code, openai_type(error.status_code)
        return answered(request, shaped, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = "/" + "/".join(str(part) for part in first["loc"])
        return answered(request, RequestError(f"{first['msg']} at {place}.", param=place))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _error: Exception) -> JSONResponse:
        return answered(request, GatewayError("The gateway failed; its log has the cause."))


def _report_end(task: asyncio.Task[None], log: structlog.typing.FilteringBoundLogger) -> None:
    """A part that has ended by itself would leave the gateway blind: say so, loudly."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background_ended", error=repr(error))
