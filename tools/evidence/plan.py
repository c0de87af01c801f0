"""What is run on a machine with GPUs. Pure.

One rank of an engine needs a GPU of its own, so the number of GPUs says how many pipeline stages can be had.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_STAGES = 4
SHORT_SOAK = 600


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: for people.
        shows: what it is evidence for.
        command: arguments, to be run in the repository's root.
        env: added to the environment.
        result: the JSON file that it writes, if it does.
    """

    name: str
    shows: str
    command: Sequence[str]
    env: Mapping[str, str]
    result: Path | None = None


def make_plan(gpus: int, environment: Path, model: Path, results: Path) -> list[Step]:
    """Return the steps for a machine with so many GPUs.

    Args:
        gpus: at least 1.
        environment: the Python environment with vLLM and the patches.
        model: folder of the model.
        results: folder for their files.

    Raises:
        ValueError: there is no GPU.
    """
    if gpus < 1:
        raise ValueError("needs a GPU")
    stages = min(gpus, MOST_STAGES)
    soaked = min(gpus, 3)
    engine = ("--environment", str(environment), "--model", str(model))
    pipelines = [str(number) for number in range(2, stages + 1)] or ["1"]
    soak, bench = results / "soak.json", results / "engine.json"
    return [
        Step(
            "same text",
            f"token ids of asynchronous scheduling equal those of synchronous, 1 to {stages} stages",
            (sys.executable, "-m", "pytest", "tests/engine/test_same_text.py", "-v"),
            {
                "STRUCTUREDLLM_FULL": "1",
                "STRUCTUREDLLM_TEST_ENVIRONMENT": str(environment),
                "STRUCTUREDLLM_TEST_MODEL": str(model),
                "STRUCTUREDLLM_TEST_MOST_STAGES": str(stages),
                # Else an answer depends on what else is in its batch, whatever the scheduling.
                "VLLM_BATCH_INVARIANT": "1",
            },
        ),
        Step(
            "short soak",
            f"{SHORT_SOAK} structured requests in cold bursts, {soaked} stages: nothing rejected or stale",
            (sys.executable, "-m", "tests.engine.soak", "--structured", str(SHORT_SOAK), *engine,
             "--stages", str(soaked), "--out", str(soak)),
            {},
            soak,
        ),
        Step(
            "throughput",
            f"structured and unstructured, synchronous and asynchronous, stages: {', '.join(pipelines)}",
            (sys.executable, "-m", "tools.bench.engine", "--profile", "gpu", "--parts", "arms", *engine,
             "--pipelines", *pipelines, "--output", str(bench)),
            {},
            bench,
        ),
    ]  # fmt: skip


def limits_of(gpus: int) -> list[str]:
    """Return what a machine with so many GPUs cannot show."""
    found = []
    if gpus < 2:
        found.append("One GPU: no pipeline. This shows the patches on one stage only.")
    elif gpus < 3:
        found.append("Two GPUs: upstream's fault needs three stages, so the drain has nothing to do here.")
    elif gpus < MOST_STAGES:
        found.append("Three GPUs: four stages were not run.")
    found.append("Upstream's own asynchronous scheduling is not compared: vLLM refuses to run it so.")
    found.append("The share of stage time is not measured here; on the CPU a test plug-in records it.")
    return found
