"""Sends a cold structured burst to one engine, with the same library as the operator's gate.

Owns the mapping between that library and the gateway; nothing else here may import it. It is off the hot
path: a connection pool of its own for each burst, a bounded number of bursts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from structuredllm_gateway.settings import ProbeSettings
from structuredllm_probe import BurstConfig, Verdict, run_burst

_MAX_BURSTS = 4


class ProbeVerdict(StrEnum):
    """What a burst showed."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNREACHABLE = "unreachable"
    UNDECIDED = "undecided"  # it answers, but neither right nor wrong could be shown


@dataclass(frozen=True)
class ProbeResult:
    """A verdict and one sentence on it."""

    verdict: ProbeVerdict
    message: str


class Probe(Protocol):
    """Probes one engine; never raises for what the engine does."""

    async def __call__(self, url: str, model: str) -> ProbeResult:
        """Send a burst for `model` to the base URL `url` and judge it."""
        ...


class BurstProbe:
    """A `Probe` over real connections."""

    def __init__(self, settings: ProbeSettings, new_seed: Callable[[], str]) -> None:
        """Take the size of a burst; `new_seed` makes each one cold."""
        self._settings = settings
        self._new_seed = new_seed
        self._slots = asyncio.Semaphore(_MAX_BURSTS)
        self._listeners: list[Callable[[str, ProbeVerdict], None]] = []

    def listen(self, ended: Callable[[str, ProbeVerdict], None]) -> None:
        """Have `ended` called with the model and the verdict of each burst."""
        self._listeners.append(ended)

    async def __call__(self, url: str, model: str) -> ProbeResult:
        """See `Probe`."""
        settings = self._settings
        config = BurstConfig(
            requests=settings.requests,
            concurrency=settings.concurrency,
            timeout_seconds=settings.timeout_seconds,
            seed=self._new_seed(),
        )
        async with self._slots:
            report = await run_burst(url, model, config)
        verdict = ProbeVerdict.UNDECIDED
        if report.verdict is Verdict.HEALTHY:
            verdict = ProbeVerdict.HEALTHY
        elif report.verdict is Verdict.FAULTY:
            verdict = ProbeVerdict.FAULTY
        elif report.reason == "EngineUnreachable":
            verdict = ProbeVerdict.UNREACHABLE
        for ended in self._listeners:
            ended(model, verdict)
        return ProbeResult(verdict, f"{report.reason}: {report.message}")
