"""Run a soak against a running engine and judge it."""

import collections
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.engine.engine_process import Engine
from tests.engine.soak import plan
from tests.engine.soak.memory import Growth, Sample, after_warm_up, resident_of
from tests.engine.soak.traffic import send_burst

ARGUMENTS = (
    "--async-scheduling",
    "--max-num-batched-tokens", "128",
    "--max-num-seqs", "48",
    # All that may grow by design is bounded, so that a leak is seen: the memory of the KV cache is touched
    # block by block, and compiled grammars are cached (XGRAMMAR_CACHE_MB).
    "--block-size", "32",
    "--num-gpu-blocks-override", "512",
)  # fmt: skip
ENVIRONMENT = {"STRUCTUREDLLM_PATCHES": "required", "VLLM_XGRAMMAR_CACHE_MB": "4"}
IDLE_SECONDS = 15.0


@dataclass(frozen=True)
class Bounds:
    """When memory counts as flat.

    Attributes:
        warm_up: structured requests after which it is looked at.
        growth: MiB that the line through all processes' memory may rise from there to the end.
    """

    warm_up: int
    growth: float


@dataclass(frozen=True)
class Outcome:
    """What a soak found; `faults` is empty when all is well."""

    seed: int
    structured: int
    seconds: float
    results: dict[str, int]
    metrics: dict[str, float]
    memory: dict[str, Growth]
    samples: list[Sample]
    faults: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for a file."""
        found = asdict(self)
        found["requests_per_second"] = round(sum(self.results.values()) / self.seconds, 2)
        found["ok"] = not self.faults
        return found


def soak(
    engine: Engine,
    *,
    structured: int,
    seed: int,
    bounds: Bounds,
    progress: Callable[[str], None],
    drains: bool = True,
) -> Outcome:
    """Send `structured` structured requests and what belongs to them, burst after burst.

    Args:
        engine: started with ARGUMENTS and ENVIRONMENT.
        structured: requests with a schema whose clients stay.
        seed: of the plan.
        bounds: for memory.
        progress: called with a line of text now and then.
        drains: whether the drain must have had something to do.
    """
    results: collections.Counter[str] = collections.Counter()
    samples = [Sample(0, resident_of(engine.session))]
    before = _counted(engine)
    done = 0
    began = told = time.monotonic()
    for number, burst in enumerate(plan.bursts(structured, seed), start=1):
        results += send_burst(engine.url, burst)
        done += sum(p.schema is not None and p.leave_after is None for p in burst)
        samples.append(Sample(done, resident_of(engine.session)))
        if time.monotonic() - told > 10 or done == structured:
            told = time.monotonic()
            progress(
                f"burst {number}: {done}/{structured} structured, {dict(results)}, "
                f"{samples[-1].total:.0f} MiB, {told - began:.0f} s"
            )
        if results["hang"]:
            break
    seconds = time.monotonic() - began
    metrics = {**_held(engine), **{name: count - before[name] for name, count in _counted(engine).items()}}
    memory = after_warm_up(samples, min(bounds.warm_up, samples[-2].done))
    faults = judge(results, structured, metrics, memory["total"], bounds, drains=drains)
    return Outcome(seed, structured, seconds, dict(results), metrics, memory, samples, faults)


def judge(
    results: collections.Counter[str],
    structured: int,
    metrics: dict[str, float],
    total: Growth,
    bounds: Bounds,
    *,
    drains: bool = True,
) -> list[str]:
    """Return what is wrong, one line each."""
    faults = [
        f"{count} x {what}" for what, count in results.items() if what not in ("valid", "plain", "left")
    ]
    if results["valid"] != structured:
        faults.append(f"{results['valid']} valid answers of {structured}")
    if results["plain"] == 0 or results["left"] == 0:
        faults.append("the mix lacked plain requests or clients that leave")
    faults += (
        f"{name} is {metrics[name]:.0f} afterwards"
        # A recovery would hide a token that was sampled under a wrong mask.
        for name in ("grammar_rejects", "grammar_recoveries", "stale_mask", "running", "waiting")
        if metrics[name] != 0
    )
    if drains and metrics["drained_batches"] == 0:
        faults.append("nothing was drained: the soak did not meet what the patch is for")
    if total.end - total.start > bounds.growth:
        faults.append(f"memory grew by {total.end - total.start:.0f} MiB after the warm-up")
    return faults


def _counted(engine: Engine) -> dict[str, float]:
    """Return the counters that a soak looks at."""
    names = ("grammar_rejects", "grammar_recoveries", "stale_mask", "drained_batches")
    return {name: engine.metric(f"structuredllm_engine_{name}_total") for name in names}


def _held(engine: Engine) -> dict[str, float]:
    """Return how many requests the engine still holds after it had time to become idle."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        held = {name: engine.served_metric(f"vllm:num_requests_{name}") for name in ("running", "waiting")}
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        time.sleep(0.5)
