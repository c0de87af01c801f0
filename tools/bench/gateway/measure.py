"""The measurements of one gateway: jobs of the load process, with the CPU time used meanwhile.

Owns the cases' order inside a gateway; which gateway comes when is the caller's.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from tools.bench.gateway.cases import (
    FRAMES,
    P99_LIMIT_SECONDS,
    PACE_SECONDS,
    UPSTREAM_SECONDS,
    Profile,
)
from tools.bench.gateway.errors import BenchError
from tools.bench.gateway.processes import Running

_CONNECTIONS = 16
_WARM_UP = 50
_MEMORY_RATE = 500.0


class Target:
    """One gateway that runs (`running` None = the engine itself, for the baseline)."""

    def __init__(
        self, name: str, port: int, running: Running | None, *, share: float, highest: float
    ) -> None:
        """Take what is known of it; `share` of the usual amounts, rates up to `highest`."""
        self.name = name
        self.port = port
        self.running = running
        self.share = share
        self.highest = highest


class Bench:
    """Runs jobs on the cores of the load; `engine_port` is where the mock engine listens."""

    def __init__(self, profile: Profile, engine_port: int, load_cores: Sequence[int]) -> None:
        """Prepare."""
        self._profile = profile
        self._engine_port = engine_port
        self._cores = ",".join(map(str, load_cores))

    def set_engine(self, **values: float) -> None:
        """Change what the engine does."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._engine_port}/control", json.dumps(values).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310

    def one(self, target: Target) -> dict[str, Any]:
        """Latency of one request at a time."""
        self._load(target, kind="one", requests=_WARM_UP)
        return self._load(target, kind="one", requests=self._amount(target, self._profile.one_requests))

    def closed(self, target: Target) -> dict[str, Any]:
        """CPU per request, at full load of 16 connections."""
        requests = self._amount(target, self._profile.closed_requests)
        self._load(target, kind="closed", requests=_WARM_UP, connections=_CONNECTIONS)
        before = target.running.cpu_seconds() if target.running else 0.0
        result = self._load(target, kind="closed", requests=requests, connections=_CONNECTIONS)
        if target.running:
            used = target.running.cpu_seconds() - before
            result["cpu_us_per_request"] = round(used / max(1, result["answers"]) * 1e6, 2)
            result["rss_mib"] = round(target.running.rss_mib(), 1)
        return result

    def frontier(self, target: Target) -> list[dict[str, Any]]:
        """Latency by rate with a 20 ms engine, until two steps in a row are above the limit."""
        steps: list[dict[str, Any]] = []
        missed = 0
        for rate in self._profile.rates:
            if rate > target.highest or missed >= 2:
                break
            connections = max(16, min(1500, int(rate * 0.1)))
            before = target.running.cpu_seconds() if target.running else 0.0
            step = self._load(
                target, kind="rate", rate=rate, seconds=self._profile.rate_seconds, connections=connections
            )
            if target.running:
                used = target.running.cpu_seconds() - before
                step["cpu_us_per_request"] = round(used / max(1, step["answers"]) * 1e6, 2)
            step["within"] = is_within(step)
            steps.append(step)
            missed = 0 if step["within"] else missed + 1
        return steps

    def streams(self, target: Target, count: int) -> dict[str, Any]:
        """Hold `count` streams at once."""
        before = target.running.cpu_seconds() if target.running else 0.0
        result = self._load(
            target,
            kind="streams",
            streams=count,
            seconds=self._profile.stream_seconds + FRAMES * PACE_SECONDS,
            frames=FRAMES,
            pace=PACE_SECONDS,
        )
        if target.running:
            frames = max(1, result["finished"] * FRAMES)
            result["cpu_us_per_frame"] = round((target.running.cpu_seconds() - before) / frames * 1e6, 2)
        return result

    def memory(self, target: Target) -> dict[str, Any]:
        """Resident memory under steady load; growth over the second half, by least squares."""
        if target.running is None:
            raise BenchError(f"{target.name} has no processes of its own")
        seconds = self._profile.memory_seconds
        load = self._start(target, kind="rate", rate=_MEMORY_RATE, seconds=seconds, connections=64)
        samples: list[tuple[float, float]] = []
        began = time.monotonic()
        while load.poll() is None:
            samples.append((time.monotonic() - began, target.running.rss_mib()))
            time.sleep(max(0.2, seconds / 120))
        self._result(target, load)
        half = samples[len(samples) // 2 :]
        return {
            "seconds": round(seconds, 1),
            "idle_mib": round(samples[0][1], 1),
            "highest_mib": round(max(rss for _, rss in samples), 1),
            "growth_mib_per_minute": round(slope(half) * 60, 3),
            "samples": [[round(at, 1), round(rss, 1)] for at, rss in samples[:: max(1, len(samples) // 60)]],
        }

    def _amount(self, target: Target, usual: int) -> int:
        return max(20, int(usual * target.share))

    def _start(self, target: Target, **job: Any) -> "subprocess.Popen[str]":
        module = "tools.bench.gateway.load"
        command = ["taskset", "-c", self._cores, sys.executable, "-m", module]
        return subprocess.Popen(
            [*command, json.dumps({"port": target.port, **job})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _load(self, target: Target, **job: Any) -> dict[str, Any]:
        return self._result(target, self._start(target, **job))

    def _result(self, target: Target, load: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            out, said = load.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            load.kill()
            load.communicate()
            raise BenchError(f"the load on {target.name} does not end") from None
        if load.returncode:
            raise BenchError(f"the load on {target.name} failed: {said.strip()[-300:]}")
        result: dict[str, Any] = json.loads(out)
        return result


def is_within(step: dict[str, Any]) -> bool:
    """Whether a step of the frontier counts: all answered, and 99 of 100 within the limit."""
    complete = not step["failures"] and not step["unanswered"]
    return complete and step["p99"] <= (UPSTREAM_SECONDS + P99_LIMIT_SECONDS) * 1e6


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points, by least squares; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
