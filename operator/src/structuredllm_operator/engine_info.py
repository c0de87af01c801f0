"""Asks an engine's telemetry port what it runs (GET :9464/info) and remembers the answer per container.

Owns the HTTP call, the wire form and the cache. An answer holds for the life of a container, so it is asked
for once; failures are not remembered.
"""

from collections import OrderedDict
from typing import Final, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from structuredllm_operator.api.labels import TELEMETRY_PORT
from structuredllm_operator.plan.observed import EngineInfo, EngineReport, PatchState, Pod

MAX_REMEMBERED: Final = 4096
"""Answers kept, oldest use dropped first; more than pods with ready engines that one operator looks after."""


class EngineInfoSource(Protocol):
    """Port: what does the engine of this pod report?"""

    async def fetch(self, pod: Pod) -> EngineReport:
        """Return the report of a pod whose engine is ready."""


class _WirePatch(BaseModel):
    id: str
    state: str
    reason: str = ""


class _WireInfo(BaseModel):
    model_config = ConfigDict(extra="ignore")

    vllm_version: str
    policy: str
    patches: list[_WirePatch]
    tensor_parallel_size: int
    pipeline_parallel_size: int
    world_size: int
    async_scheduling: bool
    async_scheduling_forced_off: str = ""


class HttpEngineInfo:
    """Implementation over HTTP."""

    def __init__(
        self, client: httpx.AsyncClient, *, timeout_seconds: float, port: int = TELEMETRY_PORT
    ) -> None:
        self._client = client
        self._timeout = timeout_seconds
        self._port = port
        self._known: OrderedDict[tuple[str, str], EngineReport] = OrderedDict()

    async def fetch(self, pod: Pod) -> EngineReport:
        """Return what the engine reports, or why it did not."""
        key = (pod.uid, pod.container_id)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        report = await self._ask(pod.ip)
        if report.info is not None:
            self._known[key] = report
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return report

    async def _ask(self, ip: str) -> EngineReport:
        host = f"[{ip}]" if ":" in ip else ip
        url = f"http://{host}:{self._port}/info"
        try:
            response = await self._client.get(url, timeout=self._timeout)
            response.raise_for_status()
            return EngineReport(info=_to_info(_WireInfo.model_validate_json(response.content)))
        except httpx.ConnectError as error:
            return EngineReport(refused=True, detail=f"GET {url}: {error}")
        except (httpx.HTTPError, ValidationError) as error:
            return EngineReport(
                detail=f"GET {url}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            )


def _to_info(wire: _WireInfo) -> EngineInfo:
    return EngineInfo(
        vllm_version=wire.vllm_version,
        policy=wire.policy,
        patches=tuple(PatchState(patch.id, patch.state, patch.reason) for patch in wire.patches),
        tensor=wire.tensor_parallel_size,
        pipeline=wire.pipeline_parallel_size,
        world_size=wire.world_size,
        async_scheduling=wire.async_scheduling,
        async_forced_off=wire.async_scheduling_forced_off,
    )
