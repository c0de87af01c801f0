"""List and watch one kind of Kubernetes object, so that the local copy is never missing a deletion.

Owns the loop: list, watch from that version, resume after a broken watch, list anew after 410 Gone, bounded
backoff in between. The API behind the `KubeApi` port is in `kubernetes.py`; this module must not import a
Kubernetes client. Rules: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-
of-changes
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

import structlog

Manifest = Mapping[str, Any]
Sleep = Callable[[float], Awaitable[None]]


WATCH_OPEN: Manifest = {"type": "OPEN"}
"""What a watch yields first, once the server has accepted it: contact, before anything has changed."""


class KubeApiError(Exception):
    """The API server could not be reached or refused; `status` is its HTTP status, None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """Build with one sentence."""
        super().__init__(message)
        self.status = status


class KubeApi(Protocol):
    """List and watch of one kind."""

    async def list(self) -> tuple[list[Manifest], str]:
        """Return all objects and the list's resourceVersion.

        Raises:
            KubeApiError: it failed.
        """
        ...

    def watch(self, resource_version: str) -> AsyncIterator[Manifest]:
        """Yield `WATCH_OPEN`, then watch events `{"type", "object"}` until the server ends the watch.

        Raises:
            KubeApiError: it failed; `status` 410 = the version is too old.
        """
        ...


class Reflector:
    """Mirrors one kind into `objects` (by uid) and calls `changed` after every change."""

    def __init__(
        self,
        kind: str,
        api: KubeApi,
        changed: Callable[[], None],
        *,
        log: structlog.typing.FilteringBoundLogger,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
        min_backoff_seconds: float = 0.2,
        max_backoff_seconds: float = 15.0,
    ) -> None:
        """Start empty, neither synced nor stale."""
        self.kind = kind
        self.objects: dict[str, Manifest] = {}
        self.synced = False
        self.stale = False
        self._api = api
        self._changed = changed
        self._log = log
        self._rng = rng
        self._sleep = sleep
        self._min_backoff = min_backoff_seconds
        self._max_backoff = max_backoff_seconds
        self._version: str | None = None
        self._backoff = min_backoff_seconds

    async def run(self) -> None:
        """Mirror until cancelled; failures are logged and tried again, the objects stay as last known."""
        while True:
            try:
                if self._version is None:
                    await self._relist()
                await self._follow()
            except KubeApiError as error:
                await self._failed(error)
            except (KeyError, TypeError, ValueError) as error:
                # An answer of an odd form must not end discovery; a new list leaves the odd event behind.
                self._version = None
                await self._failed(KubeApiError(f"unexpected answer of the API server: {error!r}"))

    async def _relist(self) -> None:
        items, version = await self._api.list()
        # Replaced as a whole: what was deleted while nobody watched is in no event.
        self.objects = {item["metadata"]["uid"]: item for item in items}
        self._version = version
        self.synced = True
        self._reached()
        self._changed()

    async def _follow(self) -> None:
        assert self._version is not None  # noqa: S101 - narrows the type; run() lists first
        async for event in self._api.watch(self._version):
            if event is WATCH_OPEN:
                self._recovered()
                continue
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise KubeApiError(str(item.get("message", "watch error")), item.get("code"))
            self._version = item["metadata"]["resourceVersion"]
            self._reached()
            if kind == "BOOKMARK":
                continue
            uid = item["metadata"]["uid"]
            if kind == "DELETED":
                self.objects.pop(uid, None)
            else:
                self.objects[uid] = item
            self._changed()
        # The server ends a watch after its timeout. A server that ends each one at once must not spin us.
        await self._sleep(self._min_backoff)

    async def _failed(self, error: KubeApiError) -> None:
        if error.status == 410:
            self._version = None
            self._log.info("discovery_relist", kind=self.kind, reason=str(error))
        elif not self.stale:
            self.stale = True
            self._log.warning("discovery_stale", kind=self.kind, reason=str(error), known=len(self.objects))
            self._changed()
        delay = self._backoff * (0.5 + self._rng.random() / 2)
        self._backoff = min(self._backoff * 2, self._max_backoff)
        await self._sleep(delay)

    def _reached(self) -> None:
        self._backoff = self._min_backoff
        self._recovered()

    def _recovered(self) -> None:
        if self.stale:
            self.stale = False
            self._log.info("discovery_recovered", kind=self.kind, known=len(self.objects))
            self._changed()
