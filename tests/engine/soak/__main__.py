"""`python -m tests.engine.soak`: start an engine, soak it, write the outcome; exit status 1 on any fault."""

import argparse
import json
import sys
from pathlib import Path

from tests.engine.engine_process import PIPELINE_STAGES, running_engine
from tests.engine.soak.run import ARGUMENTS, ENVIRONMENT, Bounds, soak
from tools.engine_env import ensure_engine_env
from tools.models.store import ensure_model
from tools.paths import repo_root

BOUNDS = Bounds(warm_up=7000, growth=48.0)
"""Memory rises ever slower until bounded caches are full: the engine core's after about 6,800 requests; the
workers' come from the CPU kernels, which keep something for each shape of a batch that they have not met."""


def main() -> int:
    """Run the soak that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.soak", description=__doc__)
    parser.add_argument("--structured", type=int, default=10_000, help="structured requests (default 10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--environment", type=Path, help="with vLLM and the patches; else the CPU's")
    parser.add_argument("--model", type=Path, help="folder; else the toy model")
    parser.add_argument("--stages", type=int, default=PIPELINE_STAGES)
    parser.add_argument("--out", type=Path, default=repo_root() / "build" / "soak" / "engine.json")
    options = parser.parse_args()
    with running_engine(
        "soak",
        options.environment or ensure_engine_env(),
        options.model or ensure_model("toy"),
        env=ENVIRONMENT,
        arguments=ARGUMENTS,
        stages=options.stages,
    ) as engine:
        outcome = soak(
            engine,
            structured=options.structured,
            seed=options.seed,
            bounds=BOUNDS,
            # With two batches in flight there is never more than one to wait for.
            drains=options.stages > 2,
            progress=lambda line: print(f"soak: {line}", flush=True),
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    for name, line in outcome.memory.items():
        slope = f"{line.per_thousand:+.2f} per 1000"
        print(f"soak: memory of {name}: {line.start:.0f} to {line.end:.0f} MiB ({slope})")
    for fault in outcome.faults:
        print(f"soak: fault: {fault}", file=sys.stderr)
    print(f"soak: {'failed' if outcome.faults else 'passed'} in {outcome.seconds:.0f} s; {options.out}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
