"""The latency of structured requests, without and next to bombs, in one run.

`python -m tests.engine.bomb_latency [URL]` measures a running engine, or one of its own, and prints ratios.
"""

import argparse
import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.engine.bad_grammars import bombs as make_bombs
from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME, running_engine
from tests.engine.traffic import schema_of
from tools.engine_env import ensure_engine_env
from tools.models.store import ensure_model


@dataclass
class Latencies:
    """Seconds of the requests, and how the bombs ended.

    Attributes:
        calm: without bombs.
        bombed: with bombs under way all the time.
        failed: requests that were not answered.
        bomb_ends: types of the bombs' errors.
        bombs: bombs sent.
        lost: requests whose connection was lost, each with all that is known of it.
    """

    calm: list[float] = field(default_factory=list)
    bombed: list[float] = field(default_factory=list)
    failed: int = 0
    bomb_ends: set[str] = field(default_factory=set)
    bombs: int = 0
    lost: list[str] = field(default_factory=list)

    def ratio(self, quantile: float) -> float:
        """Return the quantile next to bombs over the one without."""
        return quantile_of(self.bombed, quantile) / quantile_of(self.calm, quantile)

    def __str__(self) -> str:
        parts = []
        for q in (0.5, 0.9, 0.99):
            calm, bombed = quantile_of(self.calm, q) * 1000, quantile_of(self.bombed, q) * 1000
            parts.append(f"p{q * 100:g} {calm:.0f} -> {bombed:.0f} ms (x{bombed / calm:.2f})")
        lost = f", lost: {self.lost}" if self.lost else ""
        return f"{len(self.calm)} + {len(self.bombed)} requests, {self.bombs} bombs: {', '.join(parts)}{lost}"


def quantile_of(values: list[float], quantile: float) -> float:
    """Return a quantile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def measure(url: str, *, requests: int, bombs: int, rounds: int = 2, per_second: float = 4.0) -> Latencies:
    """Send structured requests at a steady rate, in turns without and with `bombs` bombs under way.

    Args:
        url: base of the OpenAI-compatible port.
        requests: how many of each.
        bombs: how many bombs are under way at a time: one that ended is followed by another one.
        rounds: in so many turns, so that a change of the machine's load meets both.
        per_second: rate of arrivals.
    """
    return asyncio.run(_measure(url, requests, bombs, rounds, per_second))


async def _measure(url: str, requests: int, bombs: int, rounds: int, per_second: float) -> Latencies:
    found = Latencies()
    async with engine_client(url, seconds=120) as client:
        await _steady(client, 8, per_second, "warm", [], found)
        for turn in range(rounds):
            share = requests // rounds
            await _steady(client, share, per_second, f"calm{turn}", found.calm, found)
            stop = asyncio.Event()
            running = [
                asyncio.create_task(_keep_bombing(client, 1000 * (turn * bombs + n), stop, found))
                for n in range(bombs)
            ]
            await asyncio.sleep(0.3)
            await _steady(client, share, per_second, f"bombed{turn}", found.bombed, found)
            stop.set()
            await asyncio.gather(*running)
    return found


async def _steady(
    client: httpx.AsyncClient, count: int, per_second: float, seed: str, into: list[float], found: Latencies
) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(number / per_second)
        schema = schema_of(number, f"{seed}x{time.time_ns()}")
        body = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            "max_tokens": 60,
            "seed": number,
        }
        started = time.perf_counter()
        response = await _post(client, body, found)
        into.append(time.perf_counter() - started)
        found.failed += response is None or response.status_code != 200

    await asyncio.gather(*(one(n) for n in range(count)))


async def _keep_bombing(client: httpx.AsyncClient, seed: int, stop: asyncio.Event, found: Latencies) -> None:
    number = seed // 1000
    while not stop.is_set():
        (bomb,) = make_bombs(1, seed=seed + number)
        number += 1
        found.bombs += 1
        response = await _post(client, {"structured_outputs": bomb, "max_tokens": 4}, found)
        if response is None:
            continue
        body = response.json()
        found.bomb_ends.add(body["error"]["type"] if "error" in body else f"{response.status_code}")


async def _post(client: httpx.AsyncClient, body: dict[str, Any], found: Latencies) -> httpx.Response | None:
    """Return the answer, or None, and a note in `found.lost`, for a connection that was lost."""
    request = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Who is it?"}], **body}
    began = time.monotonic()
    try:
        return await client.post("/v1/chat/completions", json=request)
    except httpx.TransportError as error:
        kind = next(iter(body.get("structured_outputs", {"schema": None})))
        found.lost.append(
            f"{kind} sent at {began:.3f}, lost after {time.monotonic() - began:.3f} s: {_chain(error)}"
        )
        return None


def _chain(error: BaseException) -> str:
    """Return an error and all that led to it: httpx's own has no words for a lost connection."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return " < ".join(repr(each) for each in seen)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", help="base of the port; without it an engine is started")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--bombs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url
        if url is None:
            started = running_engine(
                "bombs",
                ensure_engine_env(),
                ensure_model("toy"),
                env={"STRUCTUREDLLM_PATCHES": "required"},
                arguments=("--async-scheduling",),
            )
            url = stack.enter_context(started).url
        found = measure(url, requests=arguments.requests, bombs=arguments.bombs, rounds=arguments.rounds)
    print(found)
    print(json.dumps({"p99_ratio": found.ratio(0.99), "ends": sorted(found.bomb_ends)}))
    return 0 if found.ratio(0.99) < 1.2 and not found.failed and not found.lost else 1


if __name__ == "__main__":
    raise SystemExit(main())
