"""Command `structuredllm-gateway`: settings from environment and flags, then serve.

Owns the composition of the real parts (cluster or static list, real connections). Exit codes: 0 stopped as
asked, 2 the configuration cannot work.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
import uvloop
from pydantic import Field, ValidationError
from pydantic_settings import CliApp, CliToggleFlag, SettingsConfigDict
from pydantic_settings import SettingsError as ParseError

from structuredllm_gateway import __version__
from structuredllm_gateway.app import check_chosen, create_app, key_file_of
from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.keys.hashing import hash_key_command
from structuredllm_gateway.server.process import GatewayServer
from structuredllm_gateway.server.shared_state import FolderState
from structuredllm_gateway.server.workers import PLACE_VARIABLE, WorkerPlace
from structuredllm_gateway.settings import DiscoveryMode, ProbeSettings, Settings
from structuredllm_gateway.telemetry.logging import configure_logging, get_logger
from structuredllm_gateway.telemetry.request_log import LineWriter, RequestLines
from structuredllm_gateway.upstream.endpoints import EndpointSource, StructuredPolicy
from structuredllm_gateway.upstream.http1 import Http1Client
from structuredllm_gateway.upstream.prober import BurstProbe, Probe
from structuredllm_gateway.upstream.reachable import is_reachable
from structuredllm_gateway.upstream.static import StaticEndpoint, StaticEndpoints, StaticGate

_YOUNG_OBJECTS = 20_000


class CommandLine(Settings):
    """OpenAI-compatible gateway for engines with structured output.

    Every flag can also be set in the environment: --upstream.max-attempts is
    STRUCTUREDLLM_GATEWAY_UPSTREAM__MAX_ATTEMPTS. `structuredllm-gateway hash-key` makes entries for the
    key file.
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
    if given[:1] == ["hash-key"]:
        return hash_key_command(given[1:])
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
    given_place = os.environ.get(PLACE_VARIABLE)
    worker = None if given_place is None else WorkerPlace.of_variable(given_place)
    try:
        if settings.server.workers > 1 and worker is None and not settings.check_config:
            return _supervise(settings, given)
        return uvloop.run(_run(settings, worker))
    except SettingsError as error:
        print(f"structuredllm-gateway: {error}", file=sys.stderr)
        return 2


def _supervise(settings: CommandLine, arguments: Sequence[str]) -> int:
    """Run several workers, each this command again with a place among them."""
    # Eight MiB of modules (aiohttp) that a worker does without.
    from structuredllm_gateway.server.supervisor import Supervisor

    log = get_logger("supervisor")
    check_chosen(settings.auth)
    command = (sys.executable, "-m", "structuredllm_gateway.cli", *arguments)

    async def run(folder: Path) -> int:
        supervisor = Supervisor(command, settings.server, folder, log)
        supervisor.install_signals()
        return await supervisor.run()

    with tempfile.TemporaryDirectory(prefix="structuredllm-gateway-") as folder:
        return uvloop.run(run(Path(folder)))


async def _run(settings: CommandLine, place: WorkerPlace | None) -> int:
    context = {} if place is None else {"worker": place.number}
    log = get_logger("gateway").bind(**context)
    rng = random.Random()  # noqa: S311 - jitter and ties, no secret
    check_chosen(settings.auth)
    probe = BurstProbe(settings.probe, lambda: uuid.uuid4().hex)
    endpoints = await _endpoints(settings, probe, log, rng)
    if settings.check_config:
        keys = key_file_of(settings.auth, log)
        if keys is not None and keys.is_stale:
            raise SettingsError("auth.keys_file cannot be used; the log line above says why")
        print("structuredllm-gateway: the configuration is valid")
        return 0
    upstream = Http1Client.of(settings.upstream)
    board = None if place is None else FolderState(place.folder, place.number, time.monotonic)
    app = create_app(
        settings,
        upstream=upstream,
        endpoints=endpoints,
        rng=rng,
        log=log,
        probe=probe,
        board=board,
        line=_request_lines(settings.log_level, {"part": "gateway", **context}),
    )
    server = GatewayServer(app, settings.server, log, limits=settings.limits, place=place)
    server.install_signals()
    _settle_memory()
    await server.serve()
    return 0


def _request_lines(level: str, context: Mapping[str, Any]) -> LineWriter | None:
    """Return the writer of request lines; where lines of their level are not wanted, the log drops them."""
    if logging.getLevelNamesMapping()[level] > logging.INFO:
        return None
    return RequestLines(sys.stdout, context)


def _settle_memory() -> None:
    """Keep the collector away from what lives as long as the process, and from looking at every few requests.

    A request leaves no cycles behind; what is looked for is what an error or a library does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)


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
    # Twenty MiB of modules that a static list does without.
    from structuredllm_gateway.upstream import kubernetes

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
