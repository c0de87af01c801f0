"""`python -m tools.bench.engine`: measures the engine and writes build/bench/engine.json.

Every ratio compares arms of one run. Figures of a machine that does other work at the same time are noisy;
the file says how loaded it was.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tools.bench.engine.cases import ARMS, GROWING, PROFILES, Arm, Case, Profile
from tools.bench.engine.engines import BenchError, driver_environment, engine_args, run_arm, run_driver
from tools.bench.engine.picture import draw
from tools.bench.engine.summary import summarize
from tools.bench.engine.timeline import between, busy_shares, read_stages
from tools.engine_env import VLLM_VERSION, ensure_engine_env
from tools.models.store import ensure_model
from tools.paths import repo_root

PARTS = ("arms", "mask")
PICTURE_SECONDS = 4.0
PICTURE_CASE = f"{GROWING.name} burst 48 structured"
PICTURE_CASE_PLAIN = f"{GROWING.name} burst 48 unstructured"
PICTURES = Path("docs") / "performance"


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 when a case failed."""
    options = _options(argv)
    profile = PROFILES[options.profile]
    environment = options.environment or ensure_engine_env()
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.parent / "engine"
    found: dict[str, Any] = {"profile": profile.name, "machine": _machine()}
    if options.merge and output.exists():
        found = json.loads(output.read_text())
    try:
        for part in options.parts:
            print(f"bench-engine: {part}", file=sys.stderr, flush=True)
            _PARTS[part](found, profile, environment, work, options)
            _write(output, found)
    except BenchError as error:
        print(f"bench-engine: {error}", file=sys.stderr)
        return 1
    found["machine"]["load_at_end"] = os.getloadavg()
    _write(output, found)
    print(json.dumps({k: v for k, v in found["summary"].items() if k != "details"}, indent=2))
    failed = found["summary"].get("failed_cases")
    if failed:
        print("bench-engine: failed cases:\n  " + "\n  ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.engine", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="full")
    parser.add_argument("--output", type=Path, default=repo_root() / "build" / "bench" / "engine.json")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pipelines", nargs="+", type=int, help="only these numbers of stages")
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], help="only these arms")
    parser.add_argument("--cases", help="only cases whose name contains this")
    parser.add_argument("--requests", nargs="+", type=int, help="only these numbers of requests")
    parser.add_argument("--pictures", action="store_true", help=f"write the timelines to {PICTURES}")
    parser.add_argument("--environment", type=Path, help="use this engine environment as it is")
    parser.add_argument("--model", type=Path, help="folder of the model to ask; else the toy model")
    parser.add_argument("--merge", action="store_true", help="keep the other results of an existing file")
    return parser.parse_args(argv)


def _measure_arms(
    found: dict[str, Any], profile: Profile, environment: Path, work: Path, options: argparse.Namespace
) -> None:
    toy = ensure_model if options.environment is None else _cached_model
    model = options.model or toy("toy")
    cases = [
        case
        for case in profile.cases()
        if (options.cases or "") in case.name and (not options.requests or case.requests in options.requests)
    ]
    results: list[dict[str, Any]] = found.setdefault("cases", [])
    for pipeline in profile.pipelines:
        if options.pipelines and pipeline not in options.pipelines:
            continue
        for arm in profile.arms(pipeline):
            if options.arms and arm.name not in options.arms:
                continue
            print(f"bench-engine: PP={pipeline}, {arm.title}", file=sys.stderr, flush=True)
            folder = work / f"pp{pipeline}-{arm.name}"
            new = run_arm(
                environment, model, folder, pipeline=pipeline, arm=arm, cases=cases, emulated=profile.emulated
            )
            replaced = {(pipeline, arm.name, r["case"]) for r in new}
            results[:] = [r for r in results if (r["pipeline"], r["arm"], r["case"]) not in replaced]
            results += new
            found["summary"] = {**found.get("summary", {}), **summarize(results)}
            _write(options.output, found)
            if options.pictures and pipeline == 3:
                _draw(arm, cases, folder, new)


def _draw(arm: Arm, cases: list[Case], folder: Path, results: list[dict[str, Any]]) -> None:
    wanted = PICTURE_CASE if arm.structured_is_right else PICTURE_CASE_PLAIN
    result = next((r for r in results if r["case"] == wanted), None)
    if result is None:
        return
    stages = read_stages(folder, result["pipeline"])
    whole = between(stages, result["begin"], result["end"])
    begin = (whole[0][0].begin + whole[-1][-1].end) / 2 - PICTURE_SECONDS / 2
    shares = ", ".join(f"{share:.0%}" for share in busy_shares(whole))
    kind = "structured" if arm.structured_is_right else "unstructured"
    title = f"{arm.title[0].upper()}{arm.title[1:]}: 48 {kind} requests in one burst"
    notes = [
        f"Three stages, each {GROWING.fixed_ms:g} ms + {GROWING.per_token_ms:g} ms x tokens of the step (the "
        "number in the bar); one colour is one step.",
        f"{result['tokens_per_second']:.0f} tokens/s over the burst; the stages work {shares} of the time.",
    ]
    target = repo_root() / PICTURES / f"engine-timeline-{arm.name}.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(title, notes, stages, begin, PICTURE_SECONDS))
    print(f"bench-engine: {target}", file=sys.stderr, flush=True)


def _measure_masks(
    found: dict[str, Any], profile: Profile, environment: Path, work: Path, options: argparse.Namespace
) -> None:
    name = "smollm2"
    model = ensure_model(name) if options.environment is None else _cached_model("smollm2-135m-instruct")
    folder = work / "mask"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {**engine_args(model, pipeline=1, asynchronous=False), "max_num_seqs": 128}
    arguments.pop("disable_log_stats")
    plan = {"engine_args": arguments, "vocabulary": name}
    env = driver_environment(1, {"STRUCTUREDLLM_PATCHES": "disabled"})
    found["mask_fill"] = run_driver("mask_fill", environment, folder, plan, env)[0]
    summary, whole = found.setdefault("summary", {}), found["mask_fill"]["step_of_all"]
    for key, fill in (
        ("mask_fill_and_accept_128", "patched"),
        ("mask_fill_and_accept_128_upstream", "upstream"),
    ):
        for quantile in ("p50", "p99"):
            summary[f"{key}_{quantile}_ms"] = whole[fill][f"both_{quantile}_ms"]


_PARTS = {"arms": _measure_arms, "mask": _measure_masks}


def _cached_model(folder: str) -> Path:
    from tools.paths import cache_dir

    return cache_dir("models") / folder


def _machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.processor(),
    )  # fmt: skip
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "vllm": VLLM_VERSION,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_at_start": os.getloadavg(),
    }


def _write(output: Path, found: dict[str, Any]) -> None:
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
