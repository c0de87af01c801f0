"""`python -m tests.engine.plain_cost`: what the patches cost plain generation (build/bench/plain-cost.json).

Two engines, one with the patch package and one without, serve the same plain requests in turn, in short
rounds whose order alternates, so that what else happens on the machine falls on both. Two things are taken
of each round: seconds for the tokens, and seconds of CPU that the engine's processes used. The ratios of
the pairs give a mean and its standard error.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import httpx

from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME, Engine, running_engine
from tests.engine.soak.memory import processes_of
from tools.engine_env import ensure_engine_env
from tools.models.store import ensure_model
from tools.paths import repo_root

BOUND = 1.01
REQUESTS = 32
TOKENS = 64
ARGUMENTS = ("--async-scheduling", "--block-size", "32", "--num-gpu-blocks-override", "512")
PATCHED = {"STRUCTUREDLLM_PATCHES": "required"}
WITHOUT = {"VLLM_PLUGINS": "structuredllm_test_cpu_async", "STRUCTUREDLLM_TEST_ALLOW_UNPATCHED": "1"}
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Round:
    """Seconds of time and of CPU that one engine took for a round."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Ratio:
    """Patched over unpatched: mean of the pairs' ratios (geometric) and its standard error."""

    mean: float
    standard_error: float


def ratio_of(patched: Sequence[float], unpatched: Sequence[float]) -> Ratio:
    """Return the ratio of paired measurements.

    Raises:
        ValueError: fewer than two pairs, or of different number.
    """
    if len(patched) < 2:
        raise ValueError("needs two pairs")
    logs = [math.log(one / other) for one, other in zip(patched, unpatched, strict=True)]
    mean = math.exp(fmean(logs))
    return Ratio(mean, mean * stdev(logs) / math.sqrt(len(logs)))


def cpu_seconds(session: int) -> float:
    """Return the CPU time that the processes of a session have used so far, their threads included."""
    ticks = 0
    for _, pid in processes_of(session):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def measure(engine: Engine, number: int) -> Round:
    """Send one round of plain requests, all at once."""
    cpu, began = cpu_seconds(engine.session), time.monotonic()
    asyncio.run(_round(engine.url, number))
    return Round(time.monotonic() - began, cpu_seconds(engine.session) - cpu)


async def _round(url: str, number: int) -> None:
    async with engine_client(url, seconds=120) as client:
        await asyncio.gather(*(_request(client, number, n) for n in range(REQUESTS)))


async def _request(client: httpx.AsyncClient, number: int, position: int) -> None:
    body = {
        "model": MODEL_NAME,
        "prompt": f"Round {number}, request {position}: the ferry carries twelve boxes",
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == TOKENS


def main() -> int:
    """Measure; exit status 1 if the mean of either ratio is above the bound by more than its error."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.plain_cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=repo_root() / "build" / "bench" / "plain-cost.json")
    options = parser.parse_args()
    environment, model = ensure_engine_env(), ensure_model("toy")
    pairs: list[tuple[Round, Round]] = []
    with ExitStack() as stack:
        patched, unpatched = (
            stack.enter_context(running_engine(name, environment, model, env=env, arguments=ARGUMENTS))
            for name, env in (("cost-patched", PATCHED), ("cost-unpatched", WITHOUT))
        )
        for warm_up in range(2):
            measure(patched, -warm_up)
            measure(unpatched, -warm_up)
        for number in range(options.pairs):
            if number % 2:
                second, first = measure(unpatched, number), measure(patched, number)
            else:
                first, second = measure(patched, number), measure(unpatched, number)
            pairs.append((first, second))
    seconds = ratio_of([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs])
    cpu = ratio_of([a.cpu_seconds for a, _ in pairs], [b.cpu_seconds for _, b in pairs])
    found = {
        "patched_over_unpatched_seconds": asdict(seconds),
        "patched_over_unpatched_cpu_seconds": asdict(cpu),
        "bound": BOUND,
        "tokens_per_round": REQUESTS * TOKENS,
        "pairs": [{"patched": asdict(a), "unpatched": asdict(b)} for a, b in pairs],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, ratio in (("time", seconds), ("CPU time", cpu)):
        print(f"plain cost: {name} x {ratio.mean:.4f} +- {ratio.standard_error:.4f} ({len(pairs)} pairs)")
    print(f"plain cost: {options.out}")
    return int(any(ratio.mean - ratio.standard_error > BOUND for ratio in (seconds, cpu)))


if __name__ == "__main__":
    sys.exit(main())
