"""A pipeline with an engine core in front of it, in model time: which step is where, and when tokens come.

Models vLLM 0.32 on the V1 runner: `EngineCore.step_with_batch_queue` with a queue of as many batches as there
are stages, upstream's scheduling of decodes, and the hand-off, for which a stage does not begin a step before
the last one has sampled the step before.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from structuredllm_engine_patches.seams.phase_balancing import build_schedule
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU

LOGGER = logging.getLogger("model")


class ModelScheduler:
    """Schedules every running request that its eligible step allows, as upstream's loop does."""

    def __init__(self, depth: int = 3) -> None:
        self.parallel_config = SimpleNamespace(
            pipeline_parallel_size=depth, distributed_executor_backend="mp"
        )
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(runner_type="generate"))
        self.use_v2_model_runner = False
        self.num_spec_tokens = 0
        self.num_sampled_tokens_per_step = 1
        self.connector: Any = None
        self.current_step = 0
        self.prev_step_scheduled_req_ids: set[str] = set()
        self.requests: dict[str, Any] = {}
        self.ignores_eligibility = False

    @property
    def running(self) -> list[Any]:
        return list(self.requests.values())

    def add(self, name: str, *, prompt: int = 1) -> Any:
        request = SimpleNamespace(
            request_id=name,
            num_output_placeholders=0,
            num_output_tokens=0,
            num_tokens=prompt,
            num_computed_tokens=0,
            next_decode_eligible_step=0,
        )
        self.requests[name] = request
        return request

    def upstream_schedule(self, chunk: int = 8) -> Any:
        self.current_step += 1
        scheduled: dict[str, int] = {}
        for request in self.running:
            if self.current_step < request.next_decode_eligible_step and not self.ignores_eligibility:
                continue
            tokens = min(
                chunk, request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            )
            if tokens == 0:
                continue
            scheduled[request.request_id] = tokens
            request.num_computed_tokens += tokens
            if request.num_computed_tokens == request.num_tokens + request.num_output_placeholders:
                request.num_output_placeholders += 1
        self.prev_step_scheduled_req_ids.clear()
        self.prev_step_scheduled_req_ids.update(scheduled)
        cached = SimpleNamespace(
            req_ids=list(scheduled),
            num_output_tokens=[2 for _ in scheduled],
            all_token_ids={name: [1, 2, 3, 4, 5] for name in scheduled},
        )
        return SimpleNamespace(num_scheduled_tokens=scheduled, scheduled_cached_reqs=cached)

    def processed(self, output: Any) -> None:
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is not None and request.num_output_placeholders:
                request.num_output_placeholders -= 1
                request.num_output_tokens += 1
                request.num_tokens += 1


@dataclass
class Pipeline:
    """One run.

    Attributes:
        stage: seconds of a stage's forward pass by the step's tokens; may be changed at any time.
        core: seconds that the engine core needs for a step before and after it.
        noise: each pass takes up to so much of its time longer.
        schedule: how the seam is built; None leaves upstream alone.
        tokens: output tokens so far.
        spread_steps, steps: steps that hand nothing over, and all that are not empty.
    """

    stage: Callable[[int], float]
    depth: int = 3
    core: float = 0.002
    noise: float = 0.0
    choice: Callable[[int], Any] | None = None
    tokens: int = 0
    steps: int = 0
    spread_steps: int = 0
    now: float = 0.0
    scheduler: ModelScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = ModelScheduler(self.depth)
        self._schedule: Any = ModelScheduler.upstream_schedule
        if self.choice is not None:
            self._schedule = build_schedule(
                self._schedule, enabled=True, logger=LOGGER, choice=self.choice, clock=lambda: self.now
            )
        self._random = random.Random(1)  # noqa: S311 - repeatable
        self._free = [0.0] * self.depth
        self._handed_over_at = 0.0
        self._queue: list[tuple[Any, float]] = []

    def fill(self, requests: int) -> None:
        """Let so many requests run from now on."""
        while len(self.scheduler.requests) > requests:
            self.scheduler.requests.popitem()
        for number in range(len(self.scheduler.requests), requests):
            self.scheduler.add(f"r{self.steps}-{number}")

    def run(self, seconds: float) -> float:
        """Run for so long and return the tokens per second."""
        began, tokens = self.now, self.tokens
        while self.now < began + seconds:
            self._turn()
        return (self.tokens - tokens) / (self.now - began)

    def run_tokens(self, each: int) -> float:
        """Run until every request has so many more tokens and return the tokens per second."""
        began, tokens = self.now, self.tokens
        wanted = {r.request_id: r.num_output_tokens + each for r in self.scheduler.running}
        while any(r.num_output_tokens < wanted.get(r.request_id, 0) for r in self.scheduler.running):
            self._turn()
        return (self.tokens - tokens) / (self.now - began)

    def _turn(self) -> None:
        output = self._schedule(self.scheduler)
        self._queue.append((output, self._send(output)))
        if len(self._queue) < self.depth:
            return
        oldest, done = self._queue.pop(0)
        self.now = max(self.now, done) + (self.core / 2 if oldest.num_scheduled_tokens else 0)
        self.tokens += len(oldest.num_scheduled_tokens)
        self.scheduler.processed(oldest)

    def _send(self, output: Any) -> float:
        """Return when the step's tokens will be there."""
        size = sum(output.num_scheduled_tokens.values())
        if not size:
            return self.now
        separate = getattr(output, IDS_ARE_ON_THE_CPU, False)
        self.steps += 1
        self.spread_steps += separate
        self.now += self.core / 2
        time = max(self.now, self._handed_over_at)
        for number in range(self.depth):
            time = max(time, self._free[number])
            time += self.stage(size) * (1 + self._random.random() * self.noise)
            self._free[number] = time
        self._handed_over_at = 0.0 if separate else time
        return time
