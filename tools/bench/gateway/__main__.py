"""`python -m tools.bench.gateway`: measures the gateways and writes build/bench/gateway.json.

One core for the gateway under load, the others for engine and load. All gateways run all the time, the load
is on one at a time, and the rounds are interleaved, so that ratios compare what was measured seconds apart.
"""

import argparse
import json
import os
import platform
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.bench.gateway.cases import (
    P99_LIMIT_SECONDS,
    PACE_SECONDS,
    PROFILES,
    UPSTREAM_SECONDS,
    Profile,
)
from tools.bench.gateway.contenders import CONTENDERS, DIRECT, LITELLM, OURS, Contender, Place
from tools.bench.gateway.errors import BenchError, MissingError
from tools.bench.gateway.load import request_bytes
from tools.bench.gateway.measure import Bench, Target
from tools.bench.gateway.picture import draw
from tools.bench.gateway.processes import Running, check_machine
from tools.bench.gateway.summary import LIMITS, added, summarize
from tools.paths import repo_root

PICTURE = Path("docs") / "performance" / "gateway-frontier.svg"
CASES = ("latency", "frontier", "streams", "memory")


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 when nothing could be measured or, with --strict, a miss."""
    options = _options(argv)
    profile = PROFILES[options.profile]
    output: Path = options.output
    work = output.parent / "gateway"
    work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"profile": profile.name, "machine": _machine(), "missing": {}, "results": {}}
    try:
        with ExitStack() as stack:
            _measure(found, profile, options, work, stack)
    except BenchError as error:
        print(f"bench-gateway: {error}", file=sys.stderr)
        return 1
    found["machine"]["load_at_end"] = os.getloadavg()
    found["summary"] = summarize(found["results"])
    found["limits"] = {name: " ".join(map(str, limit)) for name, limit in LIMITS.items()}
    output.write_text(json.dumps(found, indent=1) + "\n")
    if options.picture:
        _draw(found, repo_root() / PICTURE)
    _print(found)
    return 1 if options.strict and found["summary"]["missed"] else 0


def _measure(
    found: dict[str, Any], profile: Profile, options: argparse.Namespace, work: Path, stack: ExitStack
) -> None:
    cores = check_machine()
    gateway_cores, load_cores = cores[-1:], cores[:-1]
    found["machine"] |= {"gateway_cores": gateway_cores, "load_cores": load_cores}
    engine_port = _free_port()
    engine = Running(
        [sys.executable, "-m", "tools.bench.gateway.mock_upstream", str(engine_port)],
        cores=load_cores,
        environment={},
        log=work / "engine.log",
    )
    stack.callback(engine.stop)
    _wait(engine, "the mock engine", engine_port, 20.0)
    targets = [Target(DIRECT, engine_port, None, share=1.0, highest=1e9)]
    for contender in CONTENDERS:
        if options.only and contender.name not in options.only:
            found["missing"][contender.name] = "not asked for (--only)"
            continue
        try:
            targets.append(_start(contender, engine_port, gateway_cores, work, stack, profile))
        except MissingError as error:
            found["missing"][contender.name] = str(error)
            print(f"bench-gateway: {contender.name} is missing: {error}", file=sys.stderr)
    if OURS not in {target.name for target in targets} and (not options.only or OURS in options.only):
        raise BenchError(f"the gateway does not start: {found['missing'][OURS]}")
    bench = Bench(profile, engine_port, load_cores)
    results: dict[str, dict[str, Any]] = {target.name: {} for target in targets}
    found["results"] = results
    for case in options.cases:
        print(f"bench-gateway: {case}", file=sys.stderr, flush=True)
        _CASES[case](bench, profile, targets, results)


def _latency(bench: Bench, profile: Profile, targets: Sequence[Target], results: dict[str, Any]) -> None:
    bench.set_engine(delay=0.0)
    for number in range(profile.rounds):
        # Each round begins with another one: none is always measured after the same neighbour.
        for target in [*targets[number % len(targets) :], *targets[: number % len(targets)]]:
            result = results[target.name]
            result.setdefault("one", []).append(bench.one(target))
            result.setdefault("closed", []).append(bench.closed(target))


def _frontier(bench: Bench, _: Profile, targets: Sequence[Target], results: dict[str, Any]) -> None:
    bench.set_engine(delay=UPSTREAM_SECONDS)
    for target in targets:
        results[target.name]["frontier"] = bench.frontier(target)
    bench.set_engine(delay=0.0)


def _streams(bench: Bench, profile: Profile, targets: Sequence[Target], results: dict[str, Any]) -> None:
    bench.set_engine(pace=PACE_SECONDS)
    for count in profile.stream_counts:
        for target in targets:
            if target.name == LITELLM and count > 64:
                continue  # it holds one to six; more only takes time
            results[target.name].setdefault("streams", {})[str(count)] = bench.streams(target, count)


def _memory(bench: Bench, _: Profile, targets: Sequence[Target], results: dict[str, Any]) -> None:
    for target in targets:
        if target.name == OURS:
            results[target.name]["memory"] = bench.memory(target)


_CASES = {"latency": _latency, "frontier": _frontier, "streams": _streams, "memory": _memory}


def _start(
    contender: Contender,
    engine_port: int,
    cores: Sequence[int],
    work: Path,
    stack: ExitStack,
    profile: Profile,
) -> Target:
    folder = work / contender.name
    folder.mkdir(exist_ok=True)
    place = Place(_free_port(), _free_port(), engine_port, folder)
    start = contender.start(place)
    running = Running(start.command, cores=cores, environment=start.environment, log=folder / "log.txt")
    stack.callback(running.stop)
    _wait(running, contender.name, place.port, contender.start_seconds)
    share = profile.slow_share if contender.name == LITELLM else 1.0
    return Target(contender.name, place.port, running, share=share, highest=contender.highest_rate)


def _wait(running: Running, name: str, port: int, seconds: float) -> None:
    """Wait until a real request is answered with 200."""
    limit, last = time.monotonic() + seconds, ""
    head, _, body = request_bytes(stream=False).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines)
    while time.monotonic() < limit and running.alive:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", body, headers, method="POST"
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            last = f"HTTP {error.code}: {error.read(200)!r}"
        except OSError as error:
            last = str(error)
        else:
            return
        time.sleep(0.2)
    raise MissingError(f"{name} does not answer ({last}); it said: {running.tail()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _draw(found: dict[str, Any], path: Path) -> None:
    frontiers = {
        name: result["frontier"] for name, result in found["results"].items() if "frontier" in result
    }
    if any(frontiers.values()):
        title = f"Rate against p99 ({found['machine']['processor']}, profile {found['profile']})"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(draw(title, frontiers, (UPSTREAM_SECONDS + P99_LIMIT_SECONDS) * 1000))


def _print(found: dict[str, Any]) -> None:
    results = found["results"]
    print(f"{'gateway':14} {'cpu us/req':>10} {'+p50 us':>9} {'+p99 us':>9} {'rss MiB':>8}")
    for name, result in results.items():
        closed = result.get("closed")
        if name == DIRECT or not closed:
            continue
        cpu = sorted(case["cpu_us_per_request"] for case in closed)[len(closed) // 2]
        p50, p99 = (sorted(added(results, name, p))[len(closed) // 2] for p in ("p50", "p99"))
        print(f"{name:14} {cpu:10.1f} {p50:9.1f} {p99:9.1f} {closed[-1]['rss_mib']:8.1f}")
    for name, reason in found["missing"].items():
        print(f"{name:14} missing: {reason}")
    print(json.dumps(found["summary"], indent=1))


def _machine() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg(),
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.gateway", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="full")
    parser.add_argument("--only", nargs="*", default=[], help="names of the gateways to run (default: all)")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path, default=repo_root() / "build" / "bench" / "gateway.json")
    parser.add_argument("--picture", action="store_true", help=f"draw {PICTURE}")
    parser.add_argument("--strict", action="store_true", help="fail when a promised figure is missed")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
