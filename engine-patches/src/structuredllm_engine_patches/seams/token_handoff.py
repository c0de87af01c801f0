"""p045: keep a request out of a step whose input token would reach no stage (V1, three or more stages).

The V1 runner hands the sampled ids of the immediately preceding step to the stages that need them as input,
and only for requests that stay in the batch. A request that was left out of a step gets what the scheduler
knows when it is scheduled again. With a queue of three or more batches its newest token can still be in
flight by then: it is neither handed over nor known, the worker computes with whatever lies in its buffer, and
the text is silently another one. With a queue of two the scheduler always knows it.

The request is left out of steps until its token was processed, by upstream's own field for that
(`next_decode_eligible_step`).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

ATTRIBUTE = "_structuredllm_needs_handoff"
SAFE_QUEUE = 2

Schedule = Callable[..., Any]


def build_schedule(original: Schedule) -> Schedule:
    """Return the replacement of `Scheduler.schedule`."""

    @wraps(original)
    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if needs_handoff(scheduler):
            hold_back(scheduler)
        return original(scheduler, *args, **kwargs)

    return schedule


def needs_handoff(scheduler: Any) -> bool:
    """Return whether a token can be in flight for longer than the workers hand it over. Fixed at start."""
    known = getattr(scheduler, ATTRIBUTE, None)
    if known is None:
        known = (
            bool(scheduler.scheduler_config.async_scheduling)
            and not scheduler.use_v2_model_runner
            and scheduler.vllm_config.max_concurrent_batches > SAFE_QUEUE
        )
        setattr(scheduler, ATTRIBUTE, known)
    return bool(known)


def hold_back(scheduler: Any) -> None:
    """Leave out of the next step every request whose newest token the workers would not find.

    A placeholder stands for a token in flight; the requests of the preceding step are handed theirs over.
    """
    handed_over = scheduler.prev_step_scheduled_req_ids
    # `schedule` counts its step up first, so the next one is current_step + 1.
    after_next = scheduler.current_step + 2
    for request in scheduler.running:
        if (
            request.num_output_placeholders > 0
            and request.request_id not in handed_over
            and request.next_decode_eligible_step < after_next
        ):
            request.next_decode_eligible_step = after_next
