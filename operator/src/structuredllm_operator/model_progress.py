"""Asks a running download how far it is (GET :9464/progress of its pod).

Owns the HTTP call and the wire form. A failure means that nothing is known; it is no failure of the download.
"""

from typing import Final, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from structuredllm_operator.api.labels import TELEMETRY_PORT
from structuredllm_operator.plan.observed_model import Progress

MAX_BYTES: Final = 4096


class ProgressSource(Protocol):
    """Port: how far is the download in the pod with this IP?"""

    async def fetch(self, ip: str) -> Progress | None:
        """Return what it says, None when it says nothing."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore")

    phase: str = Field(max_length=64)
    bytes: int = Field(ge=0)
    total: int = Field(alias="totalBytes", ge=0)


class HttpProgress:
    """Implementation over HTTP."""

    def __init__(
        self, client: httpx.AsyncClient, *, timeout_seconds: float, port: int = TELEMETRY_PORT
    ) -> None:
        self._client = client
        self._timeout = timeout_seconds
        self._port = port

    async def fetch(self, ip: str) -> Progress | None:
        """Ask once."""
        host = f"[{ip}]" if ":" in ip else ip
        try:
            response = await self._client.get(f"http://{host}:{self._port}/progress", timeout=self._timeout)
            response.raise_for_status()
            wire = _Wire.model_validate_json(response.content[:MAX_BYTES])
        except (httpx.HTTPError, ValidationError):
            return None
        return Progress(wire.phase, wire.bytes, wire.total)
