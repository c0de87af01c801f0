"""The seam of p001 on a scripted engine core: what is processed, in which order, and what comes out."""

import contextlib
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided import drain
from structuredllm_engine_patches.seams.batch_queue import attach_drain, build_step, merge_outputs


@dataclass
class Request:
    use_structured_output: bool = True
    is_prefill_chunk: bool = False


@dataclass
class Step:
    """Stands in for vLLM's SchedulerOutput."""

    name: str
    ids: tuple[str, ...]
    pending: bool = False

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        return dict.fromkeys(self.ids, 1)

    @property
    def scheduled_new_reqs(self) -> list[Any]:
        return []

    @property
    def scheduled_cached_reqs(self) -> SimpleNamespace:
        return SimpleNamespace(resumed_req_ids=set[str]())

    @property
    def has_structured_output_requests(self) -> bool:
        return bool(self.ids)

    @property
    def pending_structured_output_tokens(self) -> bool:
        return self.pending


class Scheduler:
    def __init__(self) -> None:
        self.requests = {"a": Request(), "b": Request(), "plain": Request(use_structured_output=False)}
        self.script: deque[Step] = deque()
        self.events: list[str] = []

    def schedule(self) -> Step:
        return self.script.popleft()

    def update_from_output(self, step: Step, output: Any) -> dict[int, Any]:
        self.events.append(f"processed {step.name}")
        return {0: f"outputs of {step.name}"}

    def get_grammar_bitmask(self, step: Step) -> None:
        self.events.append(f"mask of {step.name}")


def finished(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


@dataclass
class Core:
    """The part of vLLM's EngineCore that the seam touches; `upstream_step` follows upstream's control
    flow."""

    scheduler: Scheduler = field(default_factory=Scheduler)
    batch_queue: deque[tuple[Any, Step, Any]] = field(default_factory=deque)
    output_queue: "queue.Queue[Any] | None" = field(default_factory=queue.Queue)
    detail: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def capture_iteration_details(self, step: Step) -> Iterator[None]:
        yield None

    @contextlib.contextmanager
    def log_error_detail(self, step: Step) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.detail.append(f"dumped {step.name}")
            raise

    def _process_aborts_queue(self) -> None:
        self.scheduler.events.append("aborts")

    def _attach_iteration_details(self, outputs: dict[int, Any], details: None) -> None:
        pass

    def _attach_weight_version(self, outputs: dict[int, Any]) -> None:
        pass

    def add(self, step: Step, output: Any = "output", execute: Any = "done") -> None:
        """Put a batch into the queue as if it had been scheduled by a step before."""
        self.scheduler.script.append(step)
        assert self.scheduler.schedule() is step
        self.batch_queue.appendleft((finished(output), step, finished(execute)))

    def plan(self, step: Step) -> None:
        self.scheduler.script.append(step)


def upstream_step(core: Core) -> tuple[dict[int, Any] | None, bool]:
    step = core.scheduler.schedule()
    if not step.pending:
        core.scheduler.get_grammar_bitmask(step)
        core.batch_queue.appendleft((finished("output"), step, finished("done")))
        return None, True
    future, popped, _ = core.batch_queue.pop()
    core._process_aborts_queue()
    outputs = core.scheduler.update_from_output(popped, future.result())
    core.scheduler.get_grammar_bitmask(step)
    core.batch_queue.appendleft((finished("output"), step, finished("done")))
    return outputs, True


@pytest.fixture
def core() -> Core:
    made = Core()
    attach_drain(made)
    return made


def drained(core: Core) -> int:
    return attach_drain(core).drained_batches


step = build_step(upstream_step)


def queued_outputs(core: Core) -> list[Any]:
    assert core.output_queue is not None
    return [core.output_queue.get_nowait() for _ in range(core.output_queue.qsize())]


def test_processes_until_the_previous_step_and_delivers_in_order(core: Core) -> None:
    core.add(Step("empty", ()))
    core.add(Step("first", ("a",)))
    core.add(Step("plain", ("plain",)))
    core.plan(Step("second", ("a", "plain"), pending=True))
    outputs, executed = step(core)
    assert core.scheduler.events == [
        "aborts",
        "processed empty",
        "aborts",
        "processed first",
        "mask of second",
    ]
    assert queued_outputs(core) == [(0, "outputs of empty")]
    assert outputs == {0: "outputs of first"}
    assert executed
    assert drained(core) == 1
    assert [entry[1].name for entry in core.batch_queue] == ["second", "plain"]


def test_drains_nothing_when_upstream_popped_the_right_batch(core: Core) -> None:
    core.add(Step("first", ("a",)))
    core.add(Step("other", ("b",)))
    core.plan(Step("second", ("a",), pending=True))
    outputs, _ = step(core)
    assert outputs == {0: "outputs of first"}
    assert drained(core) == 0
    assert queued_outputs(core) == []


def test_a_step_that_is_not_deferred_drains_nothing(core: Core) -> None:
    core.add(Step("first", ("a",)))
    core.plan(Step("second", ("b",)))
    assert step(core) == (None, True)
    assert core.scheduler.events == ["mask of second"]


def test_prefill_chunks_are_no_steps_to_wait_for(core: Core) -> None:
    core.add(Step("first", ("a",)))
    core.scheduler.requests["b"].is_prefill_chunk = True
    core.add(Step("chunk", ("b",)))
    core.scheduler.requests["b"].is_prefill_chunk = False
    core.plan(Step("second", ("a", "b"), pending=True))
    step(core)
    assert drained(core) == 0


def test_a_request_that_ends_inside_a_drained_batch_does_not_stop_the_drain() -> None:
    core = Core()
    update = core.scheduler.update_from_output

    def update_and_end(popped: Step, output: Any) -> dict[int, Any]:
        if popped.name == "first":
            del core.scheduler.requests["b"]
        return update(popped, output)

    core.scheduler.update_from_output = update_and_end  # type: ignore[method-assign,assignment]
    attach_drain(core)
    core.add(Step("empty", ()))
    core.add(Step("first", ("a", "b")))
    core.add(Step("again", ("b",)))
    core.plan(Step("second", ("a", "b"), pending=True))
    step(core)
    assert [e for e in core.scheduler.events if e != "aborts"] == [
        "processed empty",
        "processed first",
        "processed again",
        "mask of second",
    ]


def test_the_failure_of_a_drained_batch_leaves_as_upstreams_would(core: Core) -> None:
    core.add(Step("empty", ()))
    core.add(Step("first", ("a",)), output=ValueError("sampling failed"))
    core.plan(Step("second", ("a",), pending=True))
    with pytest.raises(ValueError, match="sampling failed"):
        step(core)
    assert core.detail == ["dumped first"]


def test_a_drained_batch_without_output_raises_the_error_of_its_forward_pass(core: Core) -> None:
    core.add(Step("empty", ()))
    core.add(Step("first", ("a",)), output=None, execute=OSError("worker died"))
    core.plan(Step("second", ("a",), pending=True))
    with pytest.raises(OSError, match="worker died"):
        step(core)


def test_an_engine_core_that_only_logs_details_is_drained_too() -> None:
    """vLLM 0.22: there is nothing to attach to the outputs."""

    class OldCore(Core):
        capture_iteration_details = _attach_iteration_details = _attach_weight_version = property()

        @contextlib.contextmanager
        def log_iteration_details(self, step: Step) -> Iterator[None]:
            self.detail.append(f"logged {step.name}")
            yield

    core = OldCore()
    attach_drain(core)
    core.add(Step("empty", ()))
    core.add(Step("first", ("a",)))
    core.plan(Step("second", ("a",), pending=True))
    outputs, _ = step(core)
    assert outputs == {0: "outputs of first"}
    assert core.detail == ["logged first"]


def test_the_decision_is_asked_at_each_step(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "batches_to_drain", lambda waiting, queued: 0)
    core.add(Step("empty", ()))
    core.add(Step("first", ("a",)))
    core.plan(Step("second", ("a",), pending=True))
    step(core)
    assert core.scheduler.events == ["aborts", "processed empty", "mask of second"]


def test_outputs_become_one_where_there_is_no_output_queue() -> None:
    def outputs(*names: str, finished: set[str] | None = None, stats: Any = None) -> Any:
        return SimpleNamespace(outputs=list(names), finished_requests=finished, scheduler_stats=stats)

    merged = merge_outputs(
        [{0: outputs("1", finished={"x"}, stats="old")}, {}, {0: outputs("2"), 1: outputs("3")}]
    )
    assert merged[0].outputs == ["1", "2"]
    assert merged[0].finished_requests == {"x"}
    assert merged[0].scheduler_stats == "old"
    assert merged[1].outputs == ["3"]
