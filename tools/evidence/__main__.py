"""`python -m tools.evidence`: run the engine's checks on this machine's GPUs and write docs/evidence/gpu.md.

Exit status: 0 when all passed, 1 when a step failed (the page says which), 2 when there is no GPU or what the
steps need cannot be had; then nothing is written.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tools.engine_env import EngineEnvError, python_of
from tools.evidence.environment import DEFAULT_MODEL, EvidenceError, ensure_environment, find_model, run
from tools.evidence.gpus import NoGpuError, find_gpus
from tools.evidence.page import PAGE, Done, render
from tools.evidence.plan import Step, make_plan
from tools.models.store import ModelError
from tools.paths import repo_root

STEP_TIMEOUT_SECONDS = 2 * 3600
VERSIONS = (
    "import torch, vllm, xgrammar, sys; from importlib.metadata import version as v; "
    "print(f'vLLM {vllm.__version__}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
    'xgrammar {v("xgrammar")}, Python {sys.version.split()[0]}\')'
)


def main(argv: list[str] | None = None) -> int:
    """Run what can be run here."""
    parser = argparse.ArgumentParser(prog="python -m tools.evidence", description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="hf://ORGANISATION/NAME or a folder")
    parser.add_argument("--results", type=Path, default=repo_root() / "build" / "evidence")
    options = parser.parse_args(argv)
    try:
        gpus = find_gpus()
    except NoGpuError as error:
        say(f"there is no NVIDIA GPU here: {error}")
        say("run it on a machine with one (three for the fault that the patches cure, four for all of it)")
        return 2
    try:
        say(f"{len(gpus)} x {gpus[0].name}; preparing vLLM's environment (about 15 GB, once per machine)")
        environment = ensure_environment()
        model = find_model(options.model, environment)
        versions = run([str(python_of(environment)), "-c", VERSIONS]).strip().splitlines()[-1]
    except (EvidenceError, EngineEnvError, ModelError) as error:
        say(str(error))
        return 2
    options.results.mkdir(parents=True, exist_ok=True)
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = [do(step, options.results) for step in make_plan(len(gpus), environment, model, options.results)]
    shown = options.model if options.model.startswith("hf://") else model.name
    page = repo_root() / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(gpus, shown, versions, began, done))
    say(f"{page.relative_to(repo_root())} written")
    return 1 if any(d.status for d in done) else 0


def do(step: Step, results: Path) -> Done:
    """Run one step; its output goes to a log too."""
    say(f"{step.name}: {step.shows}")
    if step.result is not None:
        step.result.unlink(missing_ok=True)
    began = time.monotonic()
    log = results / f"{step.name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                step.command, cwd=repo_root(), env={**os.environ, **step.env}, stdout=output,
                stderr=subprocess.STDOUT, timeout=STEP_TIMEOUT_SECONDS, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = 124
    text = log.read_text(errors="replace")
    say(f"{step.name}: {'passed' if status == 0 else f'failed ({status}), see {log}'}")
    written = step.result is not None and step.result.is_file()
    found = json.loads(step.result.read_text()) if step.result is not None and written else None
    return Done(step, status, time.monotonic() - began, text, found)


def say(text: str) -> None:
    """Tell what happens."""
    print(f"evidence-gpu: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
