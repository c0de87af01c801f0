"""Endpoints from the settings, for use without Kubernetes: gated here, as there is no operator to do it.

Owns the fixed list and, with a gate, the life of each endpoint: a burst has to pass before it serves; when it
cannot be reached it is taken out, and what comes back has to pass again, as it may be a fresh engine with
cold grammars. Without a gate every listed endpoint serves at once and nothing is followed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.upstream.endpoints import (
    STRICTNESS,
    Endpoint,
    EndpointState,
    ModelPool,
    Snapshot,
    StructuredPolicy,
    ValidationMode,
)
from structuredllm_gateway.upstream.prober import Probe, ProbeVerdict

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class StaticEndpoint:
    """One line of the list: served model name, the engine's base URL, how structured answers are treated."""

    model: str
    url: str
    validation: ValidationMode = ValidationMode.ENFORCE
    name: str = ""
    structured: StructuredPolicy = field(default_factory=StructuredPolicy)


@dataclass(frozen=True, kw_only=True)
class StaticGate:
    """How static endpoints are gated.

    Attributes:
        probe: sends the burst.
        is_reachable: whether a new connection to a base URL can be made and is answered; slow counts as yes.
        retry_seconds, max_retry_seconds: pauses after a burst that failed, doubling.
        health_seconds: between two looks at an endpoint.
        log: where passing and leaving is said.
        rng: jitter of the pauses.
        sleep: how to wait.
    """

    probe: Probe
    is_reachable: Callable[[str], Awaitable[bool]]
    retry_seconds: float
    max_retry_seconds: float
    health_seconds: float
    log: structlog.typing.FilteringBoundLogger
    rng: random.Random
    sleep: Sleep = asyncio.sleep


class StaticEndpoints:
    """An `EndpointSource` over a fixed list."""

    def __init__(self, listed: Iterable[StaticEndpoint], gate: StaticGate | None = None) -> None:
        """Build the first view: all GATED with a gate, all SERVING without.

        Raises:
            SettingsError: two endpoints have the same name.
        """
        state = EndpointState.SERVING if gate is None else EndpointState.GATED
        pools: dict[str, ModelPool] = {}
        names: set[str] = set()
        for item in listed:
            name = item.name or item.url.split("://", 1)[-1].strip("/")
            if (key := f"{item.model} {name}") in names:
                raise SettingsError(f"the endpoint {name} is listed twice for model {item.model}")
            names.add(key)
            endpoint = Endpoint(name, item.url.rstrip("/"), state)
            before = pools.get(item.model, ModelPool(item.model, item.validation, structured=item.structured))
            mode = max(before.validation, item.validation, key=STRICTNESS.index)
            policy = before.structured.joined(item.structured)
            pools[item.model] = ModelPool(item.model, mode, (*before.endpoints, endpoint), policy)
        self._snapshot = Snapshot(pools, synced=True)
        self._gate = gate
        self._listeners: list[Callable[[], None]] = []
        self._suspected: dict[str, asyncio.Event] = {}

    def snapshot(self) -> Snapshot:
        """Return the list with what is known of each endpoint now."""
        return self._snapshot

    def subscribe(self, changed: Callable[[], None]) -> None:
        """See `EndpointSource.subscribe`."""
        self._listeners.append(changed)

    def suspect(self, endpoint: Endpoint) -> None:
        """Look at an endpoint now instead of at its next turn."""
        if (event := self._suspected.get(endpoint.url)) is not None:
            event.set()

    async def run(self) -> None:
        """Follow every endpoint until cancelled; without a gate there is nothing to follow."""
        if self._gate is None:
            await asyncio.Event().wait()
            return
        async with asyncio.TaskGroup() as group:
            for pool in self._snapshot.pools.values():
                for endpoint in pool.endpoints:
                    group.create_task(self._follow(self._gate, pool.model, endpoint))

    async def _follow(self, gate: StaticGate, model: str, endpoint: Endpoint) -> None:
        suspected = self._suspected.setdefault(endpoint.url, asyncio.Event())
        passes = 0
        while True:
            await self._until_passed(gate, model, endpoint)
            passes += 1
            self._set(model, replace(endpoint, state=EndpointState.SERVING, incarnation=str(passes)))
            while True:
                suspected.clear()
                await _first(gate.sleep(gate.health_seconds), suspected.wait())
                if not await gate.is_reachable(endpoint.url):
                    break
            self._set(model, replace(endpoint, state=EndpointState.GATED, incarnation=str(passes)))
            gate.log.warning("endpoint_away", model=model, replica=endpoint.name)

    async def _until_passed(self, gate: StaticGate, model: str, endpoint: Endpoint) -> None:
        pause = gate.retry_seconds
        while True:
            # Asked first, so that an engine which is still starting is taken in soon after it listens.
            while not await gate.is_reachable(endpoint.url):
                await gate.sleep(gate.health_seconds)
            result = await gate.probe(endpoint.url, model)
            if result.verdict is ProbeVerdict.HEALTHY:
                gate.log.info("endpoint_passed", model=model, replica=endpoint.name, probe=result.message)
                return
            gate.log.warning(
                "endpoint_gated",
                model=model,
                replica=endpoint.name,
                verdict=result.verdict.value,
                probe=result.message,
            )
            await gate.sleep(pause * (0.5 + gate.rng.random() / 2))
            pause = min(pause * 2, gate.max_retry_seconds)

    def _set(self, model: str, changed: Endpoint) -> None:
        pools = dict(self._snapshot.pools)
        pool = pools[model]
        endpoints = tuple(changed if one.name == changed.name else one for one in pool.endpoints)
        pools[model] = replace(pool, endpoints=endpoints)
        self._snapshot = Snapshot(pools, synced=True)
        for listener in self._listeners:
            listener()


async def _first(*waits: Awaitable[object]) -> None:
    """Return when the first of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
