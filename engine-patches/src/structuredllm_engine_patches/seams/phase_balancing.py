"""p040: spread the decodes over the pipeline's phases, never with a token in flight (vLLM 0.32, V1 runner).

Before each `AsyncScheduler.schedule` every running decode gets a `next_decode_eligible_step`, upstream's own
field for spacing decodes: the requests that `guided.phases` chose may go, all others wait for the next call.
The rule has two parts:

1. A request with a token in flight is never scheduled. So when it is scheduled again its tokens are all
   known to the scheduler, which sends them to the workers: no mask can be stale, and no worker has to take
   an id from another one (see `pp_handoff`). Unlike a spacing counted in steps this holds whatever else is in
   the batch queue.
2. A request is not scheduled in two calls in a row: a worker keeps the rows of the batch before and would
   take the token from there instead of from the scheduler.

The scheduler is upstream's in everything else; where a rule of it does not fit (see `reason_against`) the
seam stays out.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from structuredllm_engine_patches.errors import PhaseError
from structuredllm_engine_patches.guided.phases import PhasePlan
from structuredllm_engine_patches.seams.pp_handoff import IDS_ARE_ON_THE_CPU

ATTRIBUTE = "_structuredllm_phases"

Schedule = Callable[..., Any]


def build_schedule(original: Schedule, *, enabled: bool, logger: logging.Logger) -> Schedule:
    """Return the replacement of `AsyncScheduler.schedule`."""

    @wraps(original)
    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        balancer = _balancer_of(scheduler, enabled=enabled, logger=logger)
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


class PhaseBalancer:
    """The phases of one scheduler; called from the engine core's loop only."""

    def __init__(self, depth: int) -> None:
        self._plan = PhasePlan(depth)

    def before(self, scheduler: Any) -> None:
        """Say for each running decode whether the coming call may schedule it."""
        coming_step = scheduler.current_step + 1
        previous = scheduler.prev_step_scheduled_req_ids
        ready: list[Any] = []
        waiting = 0
        for request in scheduler.running:
            if request.num_output_placeholders == 0:
                if request.num_tokens - request.num_computed_tokens > 1:
                    continue  # A prefill: its tokens are known, its chunks may follow each other.
                if request.request_id not in previous and request.next_decode_eligible_step <= coming_step:
                    ready.append(request)
                    continue
            waiting += 1
            _hold(request, coming_step)
        chosen = self._plan.choose([request.request_id for request in ready], waiting)
        for request in ready:
            if request.request_id not in chosen:
                _hold(request, coming_step)

    def after(self, scheduler: Any, scheduler_output: Any) -> None:
        """Check the rule, tell the workers of it, and send them only what they read.

        Raises:
            PhaseError: a request was scheduled with a token in flight. Going on would decode from a token
                that no worker has.
        """
        for request_id in scheduler_output.num_scheduled_tokens:
            if scheduler.requests[request_id].num_output_placeholders > 1:
                raise PhaseError(
                    f"request {request_id} was scheduled with a token in flight although it had to wait; "
                    "set STRUCTUREDLLM_PHASES=off and report this"
                )
        setattr(scheduler_output, IDS_ARE_ON_THE_CPU, True)
        _drop_prompts(scheduler_output.scheduled_cached_reqs)


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


def _balancer_of(scheduler: Any, *, enabled: bool, logger: logging.Logger) -> PhaseBalancer | None:
    """Return a scheduler's balancer, made at its first call; None where phases do not apply."""
    if hasattr(scheduler, ATTRIBUTE):
        return cast(PhaseBalancer | None, getattr(scheduler, ATTRIBUTE))
    reason = reason_against(scheduler) if enabled else "STRUCTUREDLLM_PHASES=off"
    depth = scheduler.parallel_config.pipeline_parallel_size
    balancer = None if reason else PhaseBalancer(depth)
    logger.info("pipeline phases: %s", f"off, {reason}" if reason else f"decodes are spread over {depth}")
    setattr(scheduler, ATTRIBUTE, balancer)
    return balancer
