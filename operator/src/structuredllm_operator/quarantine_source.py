"""Asks the gateways which engine pods they keep traffic from (GET :9090/debug/replicas).

Owns the name lookup, the HTTP calls, the wire form and the short memory of the answer. The gateways write
nothing into the cluster (docs/adr/0010), so every gateway behind one headless Service is asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from structuredllm_operator.plan.observed import Quarantine

MAX_GATEWAYS: Final = 64
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
KEEP_SECONDS: Final = 5.0
"""One answer serves all resources that are looked at within this time."""

PodKey = tuple[str, str, str]
"""Namespace, pod name and containerID: what is said of one container does not hold for the next."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


class QuarantineSource(Protocol):
    """Port: which engine containers do the gateways keep traffic from?"""

    async def fetch(self) -> Mapping[PodKey, Quarantine] | None:
        """Return the quarantined ones, None when no gateway answered."""


class _WireQuarantine(BaseModel):
    model_config = ConfigDict(extra="ignore")

    state: str
    reason: str = ""
    scope: str = ""


class _WireReplica(BaseModel):
    model_config = ConfigDict(extra="ignore")

    namespace: str
    replica: str
    incarnation: str
    quarantine: _WireQuarantine


class _WireReport(BaseModel):
    model_config = ConfigDict(extra="ignore")

    replicas: list[_WireReplica]


class HttpQuarantines:
    """Implementation over HTTP.

    Args:
        client: for pod addresses, owned by the caller.
        url: base URL of the gateways' metrics port; its host stands for all of them.
        timeout_seconds: for each gateway.
        monotonic: seconds.
        resolve: host and port to addresses.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        *,
        timeout_seconds: float,
        monotonic: Callable[[], float],
        resolve: Resolve | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._client = client
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._resolve = resolve or resolve_all
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._known: Mapping[PodKey, Quarantine] | None = None

    async def fetch(self) -> Mapping[PodKey, Quarantine] | None:
        """Return what the gateways say, at most `KEEP_SECONDS` old."""
        async with self._lock:
            if self._monotonic() - self._asked >= KEEP_SECONDS:
                self._known = await self._ask_all()
                self._asked = self._monotonic()
            return self._known

    async def _ask_all(self) -> Mapping[PodKey, Quarantine] | None:
        try:
            addresses = (await self._resolve(self._host, self._port))[:MAX_GATEWAYS]
        except OSError:
            return None
        answers = await asyncio.gather(*(self._ask(address) for address in addresses))
        reports = [answer for answer in answers if answer is not None]
        if not reports:
            return None
        merged: dict[PodKey, Quarantine] = {}
        for report in reports:
            for one in report.replicas:
                if one.quarantine.state == "closed":
                    continue
                key = (one.namespace, one.replica, one.incarnation)
                before = merged.get(key)
                merged[key] = Quarantine(
                    reason=before.reason if before else one.quarantine.reason,
                    covers_all=one.quarantine.scope == "All" or (before is not None and before.covers_all),
                    gateways=1 + (before.gateways if before else 0),
                    asked=len(reports),
                )
        return merged

    async def _ask(self, address: str) -> _WireReport | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/debug/replicas"
        body = bytearray()
        try:
            async with self._client.stream("GET", url, timeout=self._timeout) as response:
                response.raise_for_status()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        return None
            return _WireReport.model_validate_json(bytes(body))
        except (httpx.HTTPError, ValidationError):
            # A gateway that starts, ends or is of another version; the others are enough.
            return None


async def resolve_all(host: str, port: int) -> list[str]:
    """Return all addresses of a host, sorted.

    Raises:
        OSError: there are none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    return sorted({str(address[0]) for *_, address in found})
