"""Runs one arm: starts the driver in the engine's environment, collects results and the stages' records."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.engine.cases import Arm, Case
from tools.bench.engine.drive import RESULT_MARK
from tools.bench.engine.timeline import between, busy_shares, read_stages
from tools.engine_env import python_of
from tools.paths import repo_root

ARM_TIMEOUT_SECONDS = 1800
MAX_REQUESTS = 160


class BenchError(RuntimeError):
    """A driver ended before it had measured everything; the message has the tail of its log."""


def engine_args(model: Path, *, pipeline: int, asynchronous: bool, emulated: bool = True) -> dict[str, Any]:
    """Return the arguments of vLLM's `AsyncEngineArgs`; without emulation vLLM chooses how to compile."""
    arguments: dict[str, Any] = {
        "model": str(model),
        # float32: at temperature 0 an answer does not depend on the batch, so arms can be compared.
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": MAX_REQUESTS,
        "max_num_batched_tokens": MAX_REQUESTS,
        "enable_prefix_caching": False,
        "pipeline_parallel_size": pipeline,
        "distributed_executor_backend": "mp" if pipeline > 1 else "uni",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "async_scheduling": asynchronous,
        "disable_log_stats": True,
    }
    if emulated:
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "NONE"}
    return arguments


def driver_environment(stages: int, extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of a driver and its engine; the working tree's sources come first."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STRUCTUREDLLM_", "VLLM_"))}
    cpus = sorted(os.sched_getaffinity(0))
    sources = [
        repo_root() / "engine-patches" / "src",
        repo_root() / "tests" / "cpu_engine" / "src",
        repo_root(),
    ]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(str(path) for path in sources),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cpus[rank % len(cpus)]) for rank in range(stages)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "STRUCTUREDLLM_TEST_CPU_ASYNC": "1",
        "STRUCTUREDLLM_TEST_FORK": "1",
        "STRUCTUREDLLM_TEST_NO_SPIN": "1",
        "STRUCTUREDLLM_TELEMETRY_PORT": "0",
        **extra,
    }


def run_arm(
    environment: Path,
    model: Path,
    folder: Path,
    *,
    pipeline: int,
    arm: Arm,
    cases: Sequence[Case],
    emulated: bool = True,
) -> list[dict[str, Any]]:
    """Measure all cases of an arm with one engine; return a result for each.

    Args:
        environment: the engine's environment.
        model: folder of the model.
        folder: where plan, log and records go; emptied first.
        pipeline: number of stages.
        arm: how the engine runs.
        cases: what to measure, in order.
        emulated: whether the stage time is emulated.

    Raises:
        BenchError: the driver failed in an arm that should be right.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plan = {
        "engine_args": engine_args(
            model, pipeline=pipeline, asynchronous=arm.asynchronous, emulated=emulated
        ),
        "stage_file": str(folder / "stage-time"),
        "cases": [asdict(case) for case in cases],
    }
    (folder / "stage-time").write_text("0 0\n")
    env = driver_environment(
        pipeline,
        {
            **arm.env,
            "STRUCTUREDLLM_TEST_STAGE_FILE": str(folder / "stage-time"),
            "STRUCTUREDLLM_TEST_TIMELINE": str(folder),
        },
    )
    lines = run_driver("drive", environment, folder, plan, env)
    stages = read_stages(folder, pipeline)
    results = []
    for case, result in zip(cases, lines, strict=False):
        shares = busy_shares(between(stages, result["begin"], result["end"]))
        right = result["wrong"] == 0
        results.append(
            {
                "pipeline": pipeline,
                "arm": arm.name,
                "stage_time": case.stage.name,
                "arrival": case.arrival.value,
                "requests": case.requests,
                "kind": case.kind.value,
                **result,
                "stage_time_used": [round(share, 4) for share in shares],
                "state": "right" if right else "faulty",
            }
        )
    return results


def run_driver(
    module: str, environment: Path, folder: Path, plan: dict[str, Any], env: dict[str, str]
) -> list[dict[str, Any]]:
    """Run `tools.bench.engine.MODULE` on a plan and return its results.

    Raises:
        BenchError: it failed or took too long.
    """
    (folder / "plan.json").write_text(json.dumps(plan, indent=1))
    log = folder / "driver.log"
    command = [str(python_of(environment)), "-m", f"tools.bench.engine.{module}", str(folder / "plan.json")]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        timer = threading.Timer(ARM_TIMEOUT_SECONDS, process.kill)
        timer.start()
        try:
            lines = list(_results(process.stdout or (), log))
            status = process.wait()
        finally:
            timer.cancel()
            end_group(process)
    if status != 0:
        raise BenchError(f"the driver ended with {status}; {log}:\n{log.read_text(errors='replace')[-3000:]}")
    return lines


def _results(output: Iterable[str], log: Path) -> Iterable[dict[str, Any]]:
    with log.with_suffix(".out").open("w") as copy:
        for line in output:
            copy.write(line)
            if line.startswith(RESULT_MARK):
                result = json.loads(line.removeprefix(RESULT_MARK))
                print(f"  {line.removeprefix(RESULT_MARK).strip()[:150]}", file=sys.stderr, flush=True)
                yield result


def end_group(process: "subprocess.Popen[str]") -> None:
    """End whatever is left of a driver's process group: its engine's workers."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
