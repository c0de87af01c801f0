"""The soak itself: a gateway and a scripted engine on real sockets, cases asked side by side, a report.

Owns the running and the counting.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from structuredllm_gateway.settings import Settings
from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointState,
    ModelPool,
    Snapshot,
    ValidationMode,
)
from tests.gateway_soak.cases import CORRUPTIONS, ENFORCED, WATCHED, Case, case_of
from tests.gateway_soak.engine import ScriptedEngine
from tests.gateway_soak.judgement import Fault, Got, judged
from tests.gateway_soak.wires import Ending, Script
from tests.unit.gateway.support import FixedEndpoints, gateway, settings_with

_MAX_DETAILS = 50
# Far above what an answer of the scripted engine takes, even on a machine that is busy with other things.
_PATIENCE_SECONDS = 4.0
_CLIENT_SECONDS = 60.0
_REPEATS = 3


@dataclass
class Report:
    """What a soak found.

    Attributes:
        cases: how many were asked.
        right: how many of them were owed a 200 with the engine's bytes.
        refused: how many were owed an error.
        repeated: how often one was asked again because the machine stood still for seconds.
        classes: how often each corruption got each class.
        faults: how often the gateway was wrong, by kind.
        details: the first of them.
    """

    seed: int
    cases: int = 0
    right: int = 0
    refused: int = 0
    streamed: int = 0
    repeated: int = 0
    seconds: float = 0.0
    classes: dict[str, Counter[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report for a file."""
        return {
            "summary": {
                "seed": self.seed,
                "cases": self.cases,
                "owed_a_200": self.right,
                "owed_an_error": self.refused,
                "streamed": self.streamed,
                "repeated": self.repeated,
                "wrong_200": self.faults["wrong_200"],
                "false_alarms": self.faults["false_alarm"],
                "other_faults": sum(self.faults.values())
                - self.faults["wrong_200"]
                - self.faults["false_alarm"],
                "seconds": round(self.seconds, 1),
            },
            "faults": dict(self.faults),
            "details": self.details,
            "classes": {
                name: {
                    "seen_as": list(CORRUPTIONS[name].seen_as),
                    "classes": dict(sorted(counted.items())),
                }
                for name, counted in sorted(self.classes.items())
            },
        }


def soak_settings() -> Settings:
    """Return settings whose deadlines let a silent engine cost seconds, not minutes."""
    return settings_with(
        upstream={
            "try_timeout_seconds": _PATIENCE_SECONDS,
            "stream_idle_timeout_seconds": _PATIENCE_SECONDS,
        }
    )


async def soak(
    *,
    seed: int,
    numbers: Iterator[int],
    name: str | None = None,
    side_by_side: int = 16,
    progress: Callable[[Report], None] = lambda _report: None,
) -> Report:
    """Ask every case of `numbers` and judge what came; `name` = of this corruption only."""
    report, script = Report(seed), Script()
    began = time.monotonic()
    async with ScriptedEngine(script) as engine:
        endpoints = (Endpoint("r0", engine.url, EndpointState.SERVING),)
        pools = {
            ENFORCED: ModelPool(ENFORCED, ValidationMode.ENFORCE, endpoints),
            WATCHED: ModelPool(WATCHED, ValidationMode.OBSERVE, endpoints),
        }
        async with (
            gateway(FixedEndpoints(Snapshot(pools, synced=True)), soak_settings()) as run,
            aiohttp.ClientSession(run.url, timeout=aiohttp.ClientTimeout(total=_CLIENT_SECONDS)) as client,
        ):

            async def work() -> None:
                for number in numbers:
                    case = case_of(seed, number, name=name)
                    script.wires[number] = case.wire
                    result = judged(case, await _ask(client, case))
                    for _ in range(_REPEATS):
                        # A machine that stood still is no fault of the gateway; one that hangs does it again.
                        stood_still = result.outcome == "timeout" or result.fault is Fault.NO_ANSWER
                        if not stood_still or case.wire.ending is Ending.HANG:
                            break
                        report.repeated += 1
                        result = judged(case, await _ask(client, case))
                    del script.wires[number]
                    _count(report, case, result.outcome)
                    if result.fault is not None:
                        report.faults[result.fault] += 1
                        report.details += [result.detail][: _MAX_DETAILS - len(report.details)]
                    run.logs.clear()
                    progress(report)

            async with asyncio.TaskGroup() as workers:
                for _ in range(side_by_side):
                    workers.create_task(work())
    report.seconds = time.monotonic() - began
    return report


async def _ask(client: aiohttp.ClientSession, case: Case) -> Got:
    try:
        async with client.post(
            case.way.path,
            data=json.dumps(case.request).encode(),
            headers={"content-type": "application/json"},
        ) as response:
            headers = {key.lower(): value for key, value in response.headers.items()}
            return Got(response.status, headers, await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        return Got(0, {}, b"", repr(error))


def _count(report: Report, case: Case, outcome: str) -> None:
    report.cases += 1
    report.streamed += case.streamed
    if case.kind == "right":
        report.right += 1
    elif case.kind == "broken" or (case.kind == "fault" and case.enforced):
        report.refused += 1
    report.classes.setdefault(case.corruption.name, Counter())[outcome] += 1
