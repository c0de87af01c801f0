"""Endpoints from the settings, for use without Kubernetes.

Owns the translation of a fixed list into one snapshot; there is no I/O, every listed endpoint counts as
serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.upstream.endpoints import (
    STRICTNESS,
    Endpoint,
    ModelPool,
    Snapshot,
    StructuredPolicy,
    ValidationMode,
)


@dataclass(frozen=True)
class StaticEndpoint:
    """One line of the list: served model name, the engine's base URL, how structured answers are treated."""

    model: str
    url: str
    validation: ValidationMode = ValidationMode.ENFORCE
    name: str = ""
    structured: StructuredPolicy = field(default_factory=StructuredPolicy)


class StaticEndpoints:
    """An `EndpointSource` that never changes."""

    def __init__(self, listed: Iterable[StaticEndpoint]) -> None:
        """Build the snapshot.

        Raises:
            SettingsError: two endpoints have the same name.
        """
        pools: dict[str, ModelPool] = {}
        names: set[str] = set()
        for item in listed:
            endpoint = Endpoint(item.name or item.url.split("://", 1)[-1].strip("/"), item.url.rstrip("/"))
            if (key := f"{item.model} {endpoint.name}") in names:
                raise SettingsError(f"the endpoint {endpoint.name} is listed twice for model {item.model}")
            names.add(key)
            before = pools.get(item.model, ModelPool(item.model, item.validation, structured=item.structured))
            mode = max(before.validation, item.validation, key=STRICTNESS.index)
            policy = before.structured.joined(item.structured)
            pools[item.model] = ModelPool(item.model, mode, (*before.endpoints, endpoint), policy)
        self._snapshot = Snapshot(pools, synced=True)

    def snapshot(self) -> Snapshot:
        """Return the list as given."""
        return self._snapshot

    async def run(self) -> None:
        """Wait until cancelled; there is nothing to follow."""
        await asyncio.Event().wait()
