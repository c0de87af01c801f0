"""p041: spread the decodes over the pipeline's phases, never with a token in flight (vLLM 0.32, V1 runner).

Before each `AsyncScheduler.schedule` every running decode gets a `next_decode_eligible_step`, upstream's own
field for spacing decodes: the requests that `guided.phases` chose may go, all others wait for the next call.
The rule has two parts:

1. A request with a token in flight is never scheduled. So when it is scheduled again its tokens are all
   known to the scheduler, which sends them to the workers: no mask can be stale, and no worker has to take
   an id from another one (see `pp_handoff`). Unlike a spacing counted in steps this holds whatever else is in
   the batch queue.
2. A request is not scheduled in two calls in a row: a worker keeps the rows of the batch before and would
   take the token from there instead of from the scheduler.

That holds while the decodes are spread, which `guided.phase_choice` decides. For it one request is watched:
when its tokens come. While they are not spread the scheduler is left alone, but for requests whose newest
token comes from a step that handed nothing over: each waits once more until its token is known.

The scheduler is upstream's in everything else; where a rule of it does not fit (see `reason_against`) the
seam stays out.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.guided.phase_choice import Choice, PhaseChoice
from structuredllm_engine_patches.guided.phases import PhasePlan
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU

ATTRIBUTE = "_structuredllm_phases"

Schedule = Callable[..., Any]
Clock = Callable[[], float]
MakeChoice = Callable[[int], Choice]
"""Makes what decides for a pipeline of so many stages."""


def build_schedule(
    original: Schedule,
    *,
    enabled: bool,
    logger: logging.Logger,
    choice: MakeChoice = PhaseChoice,
    clock: Clock = time.monotonic,
) -> Schedule:
    """Return the replacement of `AsyncScheduler.schedule`."""

    def make(scheduler: Any) -> PhaseBalancer | None:
        depth = scheduler.parallel_config.pipeline_parallel_size
        reason = reason_against(scheduler) if enabled else "STRUCTUREDLLM_PHASES=off"
        logger.info("pipeline phases: %s", f"off, {reason}" if reason else f"decodes are spread over {depth}")
        return None if reason else PhaseBalancer(depth, choice(depth), clock)

    @wraps(original)
    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        balancer = _balancer_of(scheduler, make)
        if balancer is None:
            return original(scheduler, *args, **kwargs)
        balancer.before(scheduler)
        scheduler_output = original(scheduler, *args, **kwargs)
        balancer.after(scheduler, scheduler_output)
        return scheduler_output

    return schedule


def reason_against(scheduler: Any) -> str:
    """Return why the phases do not fit this scheduler's engine; empty when they do."""
    parallel = scheduler.parallel_config
    if parallel.pipeline_parallel_size < 2:
        return "there is one pipeline stage"
    if scheduler.use_v2_model_runner:
        return "the V2 model runner spaces its decodes itself"
    if scheduler.num_spec_tokens > 0 or scheduler.num_sampled_tokens_per_step != 1:
        return "a step may sample several tokens"
    if scheduler.connector is not None:
        return "a KV connector may take back computed tokens"
    if scheduler.vllm_config.model_config.runner_type == "pooling":
        return "a pooling model samples nothing"
    if parallel.distributed_executor_backend == "external_launcher":
        return "the external launcher broadcasts logits instead of tokens"
    return ""


@dataclass
class Watched:
    """The request whose tokens tell how long a step takes.

    Attributes:
        request: vLLM's request.
        outputs: its output tokens when it was looked at last.
        since: when the newest of them came, or its step began; None while neither is known.
    """

    request: Any
    outputs: int
    since: float | None


class PhaseBalancer:
    """The phases of one scheduler; called from the engine core's loop only.

    Args:
        depth: pipeline stages.
        choice: decides whether the decodes are spread.
        clock: gives seconds and never goes back.
    """

    def __init__(self, depth: int, choice: Choice, clock: Clock = time.monotonic) -> None:
        self._plan = PhasePlan(depth)
        self._choice = choice
        self._clock = clock
        self._spread = False
        self._first = False
        self._apart: set[str] = set()
        self._watched: Watched | None = None

    def before(self, scheduler: Any) -> None:
        """Say for each running decode whether the coming call may schedule it."""
        self._look(scheduler)
        spread = self._choice.spread(len(scheduler.running))
        if spread != self._spread:
            self._spread, self._watched, self._first = spread, None, spread
        if spread:
            self._choose(scheduler)
        elif self._apart:
            self._hold_those_apart(scheduler)

    def after(self, scheduler: Any, scheduler_output: Any) -> None:
        """Check the rule, tell the workers of it, and send them only what they read.

        Raises:
            PhaseError: a request was scheduled with a token in flight. Going on would decode from a token
                that no worker has.
        """
        if self._watched is None:
            self._watch(scheduler, scheduler_output)
        if not self._spread and not self._apart:
            return
        for request_id in scheduler_output.num_scheduled_tokens:
            separate = self._spread or request_id in self._apart
            if separate and scheduler.requests[request_id].num_output_placeholders > 1:
                raise PhaseError(
                    f"request {request_id} was scheduled with a token in flight although it had to wait; "
                    "set STRUCTUREDLLM_PHASES=off and report this"
                )
        if self._spread:
            self._apart.update(scheduler_output.num_scheduled_tokens)
            self._apart &= scheduler.requests.keys()
            setattr(scheduler_output, IDS_ARE_ON_THE_CPU, True)
            _drop_prompts(scheduler_output.scheduled_cached_reqs)

    def _choose(self, scheduler: Any) -> None:
        coming_step = scheduler.current_step + 1
        ready: list[Any] = []
        waiting = 0
        for request in scheduler.running:
            if _is_prefill(request):
                continue  # Its tokens are known, its chunks may follow each other.
            if _is_known(scheduler, request) and request.next_decode_eligible_step <= coming_step:
                ready.append(request)
                continue
            waiting += 1
            _hold(request, coming_step)
        chosen = self._plan.choose([request.request_id for request in ready], waiting)
        for request in ready:
            if request.request_id not in chosen:
                _hold(request, coming_step)

    def _hold_those_apart(self, scheduler: Any) -> None:
        """Keep out of the coming call what the workers would look for among ids that were not handed over."""
        for request_id in tuple(self._apart):
            request = scheduler.requests.get(request_id)
            if request is None or _is_known(scheduler, request):
                self._apart.remove(request_id)
            elif not _is_prefill(request):
                _hold(request, scheduler.current_step + 1)

    def _look(self, scheduler: Any) -> None:
        watched = self._watched
        if watched is None:
            return
        if scheduler.requests.get(watched.request.request_id) is not watched.request:
            self._watched = None
            return
        outputs = watched.request.num_output_tokens
        if outputs > watched.outputs:
            now = self._clock()
            if watched.since is not None:
                self._choice.observe(
                    len(scheduler.running), (now - watched.since) / (outputs - watched.outputs)
                )
            watched.outputs, watched.since = outputs, now

    def _watch(self, scheduler: Any, scheduler_output: Any) -> None:
        """Watch a decode of this step; the first spread step's time is that from here to its token."""
        for request_id in scheduler_output.num_scheduled_tokens:
            request = scheduler.requests[request_id]
            if request.num_output_tokens > 0:
                self._watched = Watched(
                    request, request.num_output_tokens, self._clock() if self._first else None
                )
                self._first = False
                return


def _is_prefill(request: Any) -> bool:
    in_flight = bool(request.num_output_placeholders)
    return not in_flight and int(request.num_tokens - request.num_computed_tokens) > 1


def _is_known(scheduler: Any, request: Any) -> bool:
    """Return whether the workers would take all of a request's tokens from the scheduler."""
    if request.num_output_placeholders:
        return False
    return request.request_id not in scheduler.prev_step_scheduled_req_ids


def _hold(request: Any, step: int) -> None:
    """Keep a request out of one step; a longer wait that somebody else asked for stays."""
    request.next_decode_eligible_step = max(request.next_decode_eligible_step, step + 1)


def _drop_prompts(cached: Any) -> None:
    """Cut the token ids that are sent again at each step down to the output, which is all that workers read.

    With phases each request is sent so at each of its steps; long prompts would fill the message queue.
    """
    for request_id, outputs in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        tokens = cached.all_token_ids.get(request_id)
        if tokens is not None and len(tokens) > outputs:
            cached.all_token_ids[request_id] = tokens[len(tokens) - outputs :]


def _balancer_of(scheduler: Any, make: Callable[[Any], PhaseBalancer | None]) -> PhaseBalancer | None:
    """Return a scheduler's balancer, made at its first call; None where phases do not apply."""
    if not hasattr(scheduler, ATTRIBUTE):
        setattr(scheduler, ATTRIBUTE, make(scheduler))
    return cast(PhaseBalancer | None, getattr(scheduler, ATTRIBUTE))
