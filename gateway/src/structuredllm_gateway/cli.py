"""Command `structuredllm-gateway`: settings from environment and flags, then serve.

Owns the composition of the real parts (cluster or static list, real connections). Exit codes: 0 stopped as
asked, 2 the configuration cannot work.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Sequence

import structlog
import uvloop
from pydantic import Field, ValidationError
from pydantic_settings import CliApp, CliToggleFlag, SettingsConfigDict
from pydantic_settings import SettingsError as ParseError

from structuredllm_gateway import __version__
from structuredllm_gateway.app import create_app
from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.server import GatewayServer
from structuredllm_gateway.settings import DiscoveryMode, ProbeSettings, Settings
from structuredllm_gateway.telemetry.logging import configure_logging, get_logger
from structuredllm_gateway.upstream import kubernetes
from structuredllm_gateway.upstream.client import HttpxUpstreamClient
from structuredllm_gateway.upstream.endpoints import EndpointSource, StructuredPolicy
from structuredllm_gateway.upstream.prober import BurstProbe, Probe
from structuredllm_gateway.upstream.reachable import is_reachable
from structuredllm_gateway.upstream.static import StaticEndpoint, StaticEndpoints, StaticGate


class CommandLine(Settings):
    """OpenAI-compatible gateway for engines with structured output.

    Every flag can also be set in the environment: --upstream.max-attempts is
    STRUCTUREDLLM_GATEWAY_UPSTREAM__MAX_ATTEMPTS.
    """

    model_config = SettingsConfigDict(
        cli_prog_name="structuredllm-gateway", cli_kebab_case="no_enums", cli_avoid_json=True
    )

    check_config: CliToggleFlag[bool] = Field(default=False, description="Check the configuration and exit.")
    version: CliToggleFlag[bool] = Field(default=False, description="Print the version and exit.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; `arguments` default to the process's own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(__version__)
        return 0
    try:
        settings = CliApp.run(CommandLine, cli_args=given)
    except ValidationError as error:
        for item in error.errors():
            place = ".".join(str(part) for part in item["loc"])
            print(f"structuredllm-gateway: setting {place}: {item['msg']}", file=sys.stderr)
        return 2
    except ParseError as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        print(f"structuredllm-gateway: {error}{cause}", file=sys.stderr)
        return 2
    if settings.version:
        print(__version__)
        return 0
    configure_logging(settings.log_level)
    try:
        return uvloop.run(_run(settings))
    except SettingsError as error:
        print(f"structuredllm-gateway: {error}", file=sys.stderr)
        return 2


async def _run(settings: CommandLine) -> int:
    log = get_logger("gateway")
    rng = random.Random()  # noqa: S311 - jitter and ties, no secret
    probe = BurstProbe(settings.probe, lambda: uuid.uuid4().hex)
    endpoints = await _endpoints(settings, probe, log, rng)
    if settings.check_config:
        print("structuredllm-gateway: the configuration is valid")
        return 0
    upstream = HttpxUpstreamClient(
        max_connections=settings.upstream.max_connections,
        keepalive_seconds=settings.upstream.keepalive_seconds,
        connect_timeout_seconds=settings.upstream.connect_timeout_seconds,
        read_timeout_seconds=settings.upstream.try_timeout_seconds,
        pool_timeout_seconds=settings.upstream.connect_timeout_seconds,
    )
    app = create_app(settings, upstream=upstream, endpoints=endpoints, rng=rng, log=log, probe=probe)
    server = GatewayServer(app, settings.server, log)
    server.install_signals()
    await server.serve()
    return 0


async def _endpoints(
    settings: Settings, probe: Probe, log: structlog.typing.FilteringBoundLogger, rng: random.Random
) -> EndpointSource:
    discovery, default = settings.discovery, settings.validation.default_mode
    if discovery.mode is DiscoveryMode.STATIC:
        listed = [
            StaticEndpoint(
                item.model,
                str(item.url),
                item.validation or default,
                item.name,
                StructuredPolicy(
                    item.streaming or settings.validation.default_streaming,
                    settings.validation.default_repair if item.repair is None else item.repair,
                    frozenset({item.backend}),
                ),
            )
            for item in discovery.static_endpoints
        ]
        return StaticEndpoints(listed, _gate(settings.probe, probe, log, rng))
    return await kubernetes.connect(
        kubeconfig=discovery.kubeconfig,
        namespace=discovery.namespace,
        default_validation=default,
        log=log,
        rng=rng,
    )


def _gate(
    settings: ProbeSettings, probe: Probe, log: structlog.typing.FilteringBoundLogger, rng: random.Random
) -> StaticGate | None:
    if not settings.static_gate:
        return None
    return StaticGate(
        probe=probe,
        is_reachable=is_reachable,
        retry_seconds=settings.retry_seconds,
        max_retry_seconds=settings.max_retry_seconds,
        health_seconds=settings.health_seconds,
        log=log,
        rng=rng,
    )


if __name__ == "__main__":
    sys.exit(main())
