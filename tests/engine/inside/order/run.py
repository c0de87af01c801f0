"""Runs a scenario on an engine core and checks every event of it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from structuredllm_engine_patches.seams.ledger_hook import attach_ledger
from structuredllm_engine_patches.telemetry.metrics import GRAMMAR_REJECTS, STALE_MASKS
from structuredllm_engine_patches.telemetry.observation import Observation
from tests.engine.inside.order.engine import client_of, make_core, make_request, request_id
from tests.engine.inside.order.scenario import Plan, Scenario
from tests.engine.inside.order.tokens import whole_answer
from tests.engine.inside.order.workers import Workers

MAX_STEPS = 1500
"""A run of seven requests of at most 20 tokens takes some hundred steps; far more is a hang."""


class OrderFault(AssertionError):
    """The engine did something out of order."""


@dataclass
class Client:
    """What one request's client has got.

    Attributes:
        tokens: in the order of arrival.
        finish: finish reason, once it came.
        gone: it has gone away.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    gone: bool = False


class Run:
    """One scenario on one engine core.

    Attributes:
        counts: how often things happened, to see that a test tests something.
    """

    def __init__(self, scenario: Scenario, *, synchronous: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self._scenario = scenario
        self._plans = {request_id(number): plan for number, plan in enumerate(scenario.plans)}
        self._clients = {name: Client() for name in self._plans}
        self._compiling: list[tuple[int, Callable[[], None]]] = []
        self._observation = Observation()
        shape = scenario.shape
        self._workers = Workers(
            {name: plan.answer for name, plan in self._plans.items()},
            self._fault,
            v2=shape.v2,
            stages=shape.stages,
            draft_tokens=shape.draft_tokens,
            synchronous=synchronous,
        )
        self._core: Any = make_core(
            shape,
            self._workers,
            self._on_await,
            self._observation,
            synchronous=synchronous,
        )
        self._steps: list[Any] = []
        self._processed: list[int] = []
        self._deferred: Any = None
        self._waiting: frozenset[str] = frozenset()
        self._samples: dict[int, frozenset[str]] = {}
        self._watch(self._core.scheduler)

    def play(self) -> None:
        """Run until everything is answered.

        Raises:
            OrderFault: something was out of order; the message says what, in which step.
        """
        core, step = self._core, 0
        while True:
            step += 1
            if step > MAX_STEPS:
                self._fault(f"not done after {MAX_STEPS} steps")
            self._before_step(step)
            if core.scheduler.has_requests() or core.batch_queue:
                self._step()
            elif not self._has_more(step):
                break
        self._check_end()

    def _before_step(self, step: int) -> None:
        core = self._core
        for number, plan in enumerate(self._scenario.plans):
            if plan.arrival == step - 1:
                request, finish = make_request(core, number, plan)
                core.add_request(request)
                self._compiling.append((step + plan.compile_steps, finish))
        for due, finish in self._compiling:
            if due <= step:
                finish()
        self._compiling = [entry for entry in self._compiling if entry[0] > step]
        for name in self._leaving(while_waiting=False):
            core.abort_requests([name])
            self.counts["aborted between steps"] += 1
        if step in self._scenario.resets:
            core.reset_prefix_cache(reset_running_requests=True)
            self.counts["reset"] += 1
        for held_step, number in self._scenario.holds:
            request = core.scheduler.requests.get(request_id(number)) if held_step == step else None
            if request is not None:
                request.next_decode_eligible_step = max(
                    request.next_decode_eligible_step, core.scheduler.current_step + 2
                )
                self.counts["held"] += 1

    def _has_more(self, step: int) -> bool:
        return any(plan.arrival >= step for plan in self._scenario.plans)

    def _step(self) -> None:
        core = self._core
        self._deferred, self._waiting = None, frozenset()
        processed = len(self._processed)
        outputs, executed = core.step_fn()
        core.post_step(executed)
        self._check_drain(self._processed[processed:])
        for client, group in self._arrived(outputs):
            for output in group.outputs:
                self._deliver(client, output)

    def _arrived(self, outputs: Any) -> Iterator[tuple[int, Any]]:
        """Yield what the step sent, in order; as `EngineCoreProc._process_engine_step` sends it."""
        if self._scenario.shape.in_process:
            yield from (outputs or {}).items()
            return
        queued = self._core.output_queue
        for item in (outputs or {}).items():
            queued.put(item)
        while not queued.empty():
            yield queued.get_nowait()

    def _deliver(self, client: int, output: Any) -> None:
        name = output.request_id
        number = int(name[1:])
        if client != client_of(number):
            self._fault(f"{name}: output went to client {client}")
        got = self._clients[name]
        if got.finish is not None:
            self._fault(f"{name}: output {output.new_token_ids} after it had finished")
        got.tokens.extend(output.new_token_ids)
        self._check_text(name, got)
        if output.finish_reason is not None:
            got.finish = str(output.finish_reason)

    def _leaving(self, *, while_waiting: bool) -> list[str]:
        found = []
        for name, plan in self._plans.items():
            client = self._clients[name]
            if (
                plan.abort is not None
                and plan.abort.while_waiting is while_waiting
                and not client.gone
                and client.finish is None
                and len(client.tokens) >= plan.abort.after
                and name in self._core.scheduler.requests
            ):
                client.gone = True
                found.append(name)
        return found

    def _on_await(self) -> None:
        for name in self._leaving(while_waiting=True):
            self._core.aborts_queue.put_nowait([name])
            self.counts["aborted while waiting"] += 1

    def _watch(self, scheduler: Any) -> None:
        """Wrap the scheduler below the drain's own hooks, so that drained batches are seen too."""
        schedule, update = scheduler.schedule, scheduler.update_from_output
        mask = scheduler.get_grammar_bitmask

        def watched_schedule(*args: Any) -> Any:
            step = schedule(*args)
            sampled = frozenset(
                name
                for name in step.num_scheduled_tokens
                if self._plans[name].answer.structured and not scheduler.requests[name].is_prefill_chunk
            )
            self._steps.append(step)
            self._samples[len(self._steps) - 1] = sampled
            self.counts["steps"] += 1
            self.counts["empty steps"] += not step.num_scheduled_tokens
            self.counts["preemptions"] += len(step.preempted_req_ids or ())
            if step.pending_structured_output_tokens:
                self._deferred, self._waiting = step, sampled
                self.counts["deferred"] += 1
            return step

        def watched_update(step: Any, output: Any) -> Any:
            number = self._number_of(step)
            if number != len(self._processed):
                self._fault(f"step {number} was processed after {len(self._processed)} steps")
            self._processed.append(number)
            return update(step, output)

        def watched_mask(step: Any) -> Any:
            self._check_masks(step)
            return mask(step)

        scheduler.schedule = watched_schedule
        scheduler.update_from_output = watched_update
        scheduler.get_grammar_bitmask = watched_mask

    def _number_of(self, step: Any) -> int:
        for number in range(len(self._steps) - 1, -1, -1):
            if self._steps[number] is step:
                return number
        raise OrderFault("a step was processed that was never scheduled")

    def _check_masks(self, step: Any) -> None:
        """A mask may be built only when the grammar has seen every token that was sampled before."""
        for name in self._samples[self._number_of(step)]:
            request = self._core.scheduler.requests.get(name)
            if request is None:
                continue
            accepted = request.structured_output_request.grammar.accepted
            sampled = self._workers.said.get(name, [])
            self.counts["masks"] += 1
            if accepted != sampled:
                self._fault(
                    f"{name}: mask after {len(accepted)} accepted tokens, sampled were {len(sampled)}"
                )

    def _check_drain(self, processed: list[int]) -> None:
        """The newest drained batch must be one that the deferred batch had to wait for."""
        if self._deferred is None:
            return
        self.counts["drained batches"] += len(processed) - 1
        if len(processed) > 1 and self._waiting.isdisjoint(self._samples[processed[-1]]):
            self._fault(f"step {processed[-1]} was drained and holds nothing of {sorted(self._waiting)}")

    def _check_text(self, name: str, got: Client) -> None:
        expected = whole_answer(self._plans[name].answer)
        if got.tokens != expected[: len(got.tokens)]:
            self._fault(f"{name}: got {got.tokens}, synchronous scheduling gives {expected}")

    def _check_end(self) -> None:
        for name, plan in self._plans.items():
            self._check_answer(name, plan, self._clients[name])
        scheduler = self._core.scheduler
        if scheduler.requests or self._core.batch_queue:
            self._fault(
                f"left behind: {sorted(scheduler.requests)}, {len(self._core.batch_queue or ())} batches"
            )
        if len(attach_ledger(scheduler)):
            self._fault(f"{len(attach_ledger(scheduler))} steps left in the ledger")
        if scheduler.kv_cache_manager.usage:
            self._fault("KV cache blocks are left allocated")
        stale = self._observation.value(STALE_MASKS)
        rejects = sum(
            value for (metric, _), value in self._observation.counts.items() if metric is GRAMMAR_REJECTS
        )
        if stale or rejects:
            self._fault(f"{stale} stale masks and {rejects} rejects were counted")

    def _check_answer(self, name: str, plan: Plan, got: Client) -> None:
        if got.gone:
            return
        failing = plan.compile_fails and plan.answer.structured
        expected = [] if failing else whole_answer(plan.answer)
        if got.tokens != expected or got.finish is None or (got.finish == "error") != failing:
            self._fault(f"{name}: ended {got.finish} with {got.tokens}, expected {expected}")

    def _fault(self, what: str) -> None:
        raise OrderFault(f"step {len(self._steps)}: {what}")
