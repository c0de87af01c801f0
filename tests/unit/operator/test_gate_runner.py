"""Bursts are bounded, cancelled when their container goes, and never leave the gate in "running"."""

import asyncio

import pytest

from structuredllm_operator.gate_runner import GateRunner, ResourceKey
from structuredllm_operator.metrics import Metrics
from structuredllm_operator.plan.gate import BurstOrder, BurstResult

TOY: ResourceKey = ("ns", "toy")


def order(pod: str = "pod-1", container: str = "c1", generation: int = 1) -> BurstOrder:
    """Return an order."""
    return BurstOrder("ns", "toy", pod, pod, container, "http://x", "toy", 4, 4, 5.0, "seed", generation, 1)


class Prober:
    """Holds bursts until told to go on."""

    def __init__(self) -> None:
        self.door = asyncio.Event()
        self.active = 0
        self.most = 0
        self.cancelled = 0
        self.result: BurstResult | Exception = BurstResult(True, "BurstPassed", "fine")

    async def __call__(self, _: BurstOrder) -> BurstResult:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await self.door.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def build(prober: Prober, done: list[ResourceKey], *, most: int = 2) -> GateRunner:
    """Return a runner with a clock that stands at 7 s."""
    return GateRunner(
        prober,
        on_done=done.append,
        max_concurrent=most,
        clock=lambda: 7.0,
        jitter_seconds=lambda: 0.0,
        metrics=Metrics(),
    )


async def settle() -> None:
    """Let all tasks that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_burst_is_remembered_for_its_container() -> None:
    prober = Prober()
    done: list[ResourceKey] = []
    runner = build(prober, done)
    runner.start(order())
    runner.start(order())
    await settle()
    assert prober.active == 1
    assert runner.runs(TOY)["pod-1", "c1"].running
    prober.door.set()
    await settle()
    run = runner.runs(TOY)["pod-1", "c1"]
    assert (run.running, run.attempts, run.finished_at) == (False, 1, 7.0)
    assert run.last is not None
    assert run.last.passed
    assert done == [TOY]


async def test_no_more_bursts_than_allowed_run_together() -> None:
    prober = Prober()
    done: list[ResourceKey] = []
    runner = build(prober, done, most=2)
    for number in range(5):
        runner.start(order(pod=f"pod-{number}"))
    await settle()
    assert prober.most == 2
    prober.door.set()
    await settle()
    assert len(done) == 5
    assert prober.most == 2


async def test_a_burst_ends_and_is_forgotten_when_its_container_goes() -> None:
    prober = Prober()
    done: list[ResourceKey] = []
    runner = build(prober, done)
    runner.start(order(container="c1"))
    await settle()
    runner.keep(TOY, {("pod-1", "c2")})
    await settle()
    assert prober.cancelled == 1
    assert runner.runs(TOY) == {}
    assert done == []


async def test_close_ends_everything() -> None:
    prober = Prober()
    runner = build(prober, [])
    runner.start(order())
    await settle()
    await runner.close()
    assert prober.cancelled == 1


async def test_a_fault_of_the_probe_counts_as_a_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    prober = Prober()
    done: list[ResourceKey] = []
    prober.result = RuntimeError("boom")
    prober.door.set()
    runner = build(prober, done)
    runner.start(order())
    await settle()
    run = runner.runs(TOY)["pod-1", "c1"]
    assert run.last is not None
    assert (run.running, run.attempts, run.last.passed, run.last.reason) == (False, 1, False, "Inconclusive")
    assert done == [TOY]


async def test_a_new_generation_starts_counting_anew() -> None:
    prober = Prober()
    done: list[ResourceKey] = []
    prober.result = BurstResult(False, "GrammarRejected", "no")
    prober.door.set()
    runner = build(prober, done)
    for generation in (1, 1, 2):
        runner.start(order(generation=generation))
        await settle()
    run = runner.runs(TOY)["pod-1", "c1"]
    assert (run.generation, run.attempts) == (2, 1)
