"""Keep a `StepLedger` for an engine core by wrapping `schedule` and `update_from_output` of its scheduler.

Wraps bound methods of the one instance, not of the class: nothing has to be undone elsewhere and other
engine cores in the process (tests) are untouched. Used by the drain and by telemetry, whichever comes
first.
"""

from typing import Any

from structuredllm_engine_patches.guided.ledger import StepLedger

ATTRIBUTE = "_structuredllm_ledger"


def attach_ledger(scheduler: Any) -> StepLedger:
    """Return the scheduler's ledger, hooking it up at the first call."""
    existing = getattr(scheduler, ATTRIBUTE, None)
    if existing is not None:
        return existing  # type: ignore[no-any-return]
    ledger = StepLedger()
    schedule = scheduler.schedule
    update_from_output = scheduler.update_from_output

    def schedule_and_note(*args: Any, **kwargs: Any) -> Any:
        scheduler_output = schedule(*args, **kwargs)
        if len(ledger):
            ledger.forget(requests_starting_anew(scheduler, scheduler_output))
        # The flag is upstream's own: plain traffic costs one attribute read a step.
        if scheduler_output.has_structured_output_requests:
            ledger.scheduled(
                step_key(scheduler_output), sampled_structured_requests(scheduler, scheduler_output)
            )
        return scheduler_output

    def update_and_note(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return update_from_output(scheduler_output, *args, **kwargs)
        finally:
            ledger.processed(step_key(scheduler_output))

    scheduler.schedule = schedule_and_note
    scheduler.update_from_output = update_and_note
    setattr(scheduler, ATTRIBUTE, ledger)
    return ledger


def step_key(scheduler_output: Any) -> int:
    """Return what identifies a step in the ledger.

    The object's identity: it stays alive in the batch queue until it is processed, and upstream's class is
    neither hashable nor a place for a field of ours (it travels to the workers).
    """
    return id(scheduler_output)


def requests_starting_anew(scheduler: Any, scheduler_output: Any) -> list[str]:
    """Return the requests of the step, just scheduled, for which no earlier step counts.

    That is a request that never ran (its id may have been another request's, which was aborted with steps in
    flight), and one that resumes while upstream throws away what is in flight for it (after a reset of the
    prefix cache). One that resumes after an ordinary preemption keeps its earlier steps.
    """
    entering = [new.req_id for new in scheduler_output.scheduled_new_reqs]
    entering.extend(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
    found = []
    for request_id in entering:
        request = scheduler.requests.get(request_id)
        if request is not None and (not request.num_preemptions or _output_is_dropped(request)):
            found.append(request_id)
    return found


def _output_is_dropped(request: Any) -> bool:
    """Return whether what was in flight for a request when it was preempted is thrown away."""
    # vLLM 0.22 counts what it throws away, 0.32 has a flag.
    return (
        bool(getattr(request, "drop_stale_output", False))
        or getattr(request, "async_tokens_to_discard", 0) > 0
    )


def sampled_structured_requests(scheduler: Any, scheduler_output: Any) -> list[str]:
    """Return the structured requests for which the step, just scheduled, samples a token.

    Must be called before the next step is scheduled: `is_prefill_chunk` describes the latest step only.
    """
    found = []
    for request_id in scheduler_output.num_scheduled_tokens:
        request = scheduler.requests.get(request_id)
        if request is not None and request.use_structured_output and not request.is_prefill_chunk:
            found.append(request_id)
    return found
