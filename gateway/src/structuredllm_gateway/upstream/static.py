"""Endpoints from the settings, for use without Kubernetes.

Owns the translation of a fixed list into one snapshot; there is no I/O, every listed endpoint counts as
serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.upstream.endpoints import STRICTNESS, Endpoint, ModelPool, Snapshot, ValidationMode


@dataclass(frozen=True)
class StaticEndpoint:
    """One line of the list: the served model name, the engine's base URL, the model's validation mode."""

    model: str
    url: str
    validation: ValidationMode = ValidationMode.ENFORCE
    name: str = ""


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
            before = pools.get(item.model, ModelPool(item.model, item.validation))
            mode = max(before.validation, item.validation, key=STRICTNESS.index)
            pools[item.model] = ModelPool(item.model, mode, (*before.endpoints, endpoint))
        self._snapshot = Snapshot(pools, synced=True)

    def snapshot(self) -> Snapshot:
        """Return the list as given."""
        return self._snapshot

    async def run(self) -> None:
        """Wait until cancelled; there is nothing to follow."""
        await asyncio.Event().wait()
