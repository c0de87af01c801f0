"""What the package costs a workload that has no need of it: plain generation on one device.

Two engines live at the same time, one with the package and one without (`VLLM_PLUGINS`), and take turns in
an order that cancels drifts. Nothing is emulated: all time is the engine's own, so a cost would show at its
largest. Two figures: tokens per second, which the machine's other work disturbs, and CPU seconds of the
engine's processes per token, which it disturbs less.

In the engine's environment (`python -m tools.bench.engine.plain_cost PLAN.json`) this is one of the two.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.bench.engine.cases import Kind
from tools.bench.engine.drive import RESULT_MARK, Driver
from tools.bench.engine.engines import BenchError, driver_environment, end_group, engine_args
from tools.engine_env import python_of

REQUESTS = 24
TOKENS = 64
PLUGINS = {
    "with": "structuredllm,structuredllm_test_cpu_async",
    "without": "structuredllm_test_cpu_async",
}
TICKS = os.sysconf("SC_CLK_TCK")


def measure(environment: Path, model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the ratios of both engines; a round is two turns of each.

    Raises:
        BenchError: an engine ended early.
    """
    engines = {name: _start(name, environment, model, folder) for name in PLUGINS}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in PLUGINS}
    try:
        for number in range(-1, rounds):
            order = ("with", "without") if number % 2 else ("without", "with")
            for name in (*order, *reversed(order)):
                turn = _turn(engines[name], folder / name)
                if number >= 0:
                    turns[name].append(turn)
    finally:
        for process in engines.values():
            end_group(process)
            process.wait()
    return {"requests": REQUESTS, "tokens_each": TOKENS, "turns": turns, **ratios(turns)}


def ratios(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return with over without: of the fastest turns, of the medians, and of the CPU seconds per token.

    The fastest turn is the one that was disturbed the least.
    """
    rate = {name: [t["tokens"] / t["seconds"] for t in found] for name, found in turns.items()}
    cpu = {name: [t["cpu_seconds"] / t["tokens"] for t in found] for name, found in turns.items()}
    return {
        "throughput_with_over_without": round(max(rate["with"]) / max(rate["without"]), 4),
        "throughput_with_over_without_median": round(
            statistics.median(rate["with"]) / statistics.median(rate["without"]), 4
        ),
        "cpu_per_token_with_over_without": round(min(cpu["with"]) / min(cpu["without"]), 4),
        "cpu_per_token_with_over_without_median": round(
            statistics.median(cpu["with"]) / statistics.median(cpu["without"]), 4
        ),
    }


def _start(name: str, environment: Path, model: Path, folder: Path) -> "subprocess.Popen[str]":
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    plan = {"engine_args": engine_args(model, pipeline=1, asynchronous=True)}
    (own / "plan.json").write_text(json.dumps(plan))
    process = subprocess.Popen(
        [str(python_of(environment)), "-m", "tools.bench.engine.plain_cost", str(own / "plan.json")],
        cwd=own,
        env=driver_environment(1, {"VLLM_PLUGINS": PLUGINS[name]}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(own / "driver.log").open("wb"),
        text=True,
        start_new_session=True,
    )
    _result(process, own)
    return process


def _turn(process: "subprocess.Popen[str]", folder: Path) -> dict[str, float]:
    if process.stdin is not None:
        process.stdin.write("go\n")
        process.stdin.flush()
    return _result(process, folder)


def _result(process: "subprocess.Popen[str]", folder: Path) -> dict[str, float]:
    for line in process.stdout or ():
        if line.startswith(RESULT_MARK):
            found: dict[str, float] = json.loads(line.removeprefix(RESULT_MARK))
            return found
    log = (folder / "driver.log").read_text(errors="replace")[-3000:]
    raise BenchError(f"the engine of the plain runs ended early: {log}")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all below it that are alive."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    own = os.getpid()
    total = 0.0
    for process in used:
        ancestor = process
        while ancestor not in (0, own):
            ancestor = parents.get(ancestor, 0)
        total += used[process] if ancestor == own else 0.0
    return total


async def serve(plan: dict[str, Any]) -> None:
    """Run one turn for every line on standard input."""
    driver = Driver(plan)
    loop = asyncio.get_running_loop()
    try:
        await driver.warm_up()
        print(RESULT_MARK + "{}", flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            used, begin = cpu_seconds(), time.monotonic()
            answers = await asyncio.gather(*(driver.ask(n, Kind.PLAIN, TOKENS) for n in range(REQUESTS)))
            seconds, cpu = time.monotonic() - begin, cpu_seconds() - used
            wrong = [a.error for a in answers if a.error]
            if wrong:
                raise BenchError(f"plain answers are wrong: {wrong[:3]}")
            turn = {"seconds": seconds, "cpu_seconds": cpu, "tokens": REQUESTS * TOKENS}
            print(RESULT_MARK + json.dumps(turn), flush=True)
    finally:
        driver.engine.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
