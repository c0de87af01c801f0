"""p041: leave out the hand-off of sampled ids between pipeline stages where nobody needs it (vLLM 0.32, V1).

With asynchronous scheduling the last stage broadcasts each step's sampled ids, and every other stage waits
for them before its next forward pass, whichever requests that is for. So a stage cannot start a step before
the last stage has sampled the step before: only one stage works at a time. Where the engine core says, step
by step, that no later step will need the ids from the workers (`phase_balancing`), neither side of the
broadcast runs. All ranks get the same word with the same step, so they agree; without the word, or in
workers without this patch, everything is as upstream has it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

IDS_ARE_ON_THE_CPU = "structuredllm_ids_are_on_the_cpu"
"""Attribute of a step's SchedulerOutput; travels to the workers with it."""

ATTRIBUTE = "_structuredllm_skip_handoff"

Method = Callable[..., Any]


def build(original: Method) -> Method:
    """Return the replacement of one of the three methods of `GPUModelRunner` that take part."""
    makers = {
        "execute_model": build_execute_model,
        "_pp_broadcast_prev_sampled_token_ids": build_broadcast,
        "_pp_receive_prev_sampled_token_ids_to_input_batch": build_receive,
    }
    return makers[original.__name__](original)


def build_execute_model(original: Method) -> Method:
    """Remember, until the step's sampling, what the engine core said about its ids."""

    @wraps(original)
    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(runner, ATTRIBUTE, getattr(scheduler_output, IDS_ARE_ON_THE_CPU, False))
        return original(runner, scheduler_output, *args, **kwargs)

    return execute_model


def build_broadcast(original: Method) -> Method:
    """The last stage's side."""

    @wraps(original)
    def broadcast(runner: Any, sampled_token_ids: Any) -> None:
        if not getattr(runner, ATTRIBUTE, False):
            original(runner, sampled_token_ids)

    return broadcast


def build_receive(original: Method) -> Method:
    """The other stages' side: upstream's bookkeeping without its receive.

    Upstream leaves the receive out itself when a step sampled for nobody, so that is what it is told. The
    buffer that it then leaves behind was never written: without it the next step takes its input ids from
    the CPU, where they all are.
    """

    @wraps(original)
    def receive(runner: Any) -> None:
        if not getattr(runner, ATTRIBUTE, False):
            original(runner)
            return
        runner._is_all_reqs_chunked_prefill = _yes
        try:
            original(runner)
        finally:
            del runner._is_all_reqs_chunked_prefill
        runner.input_batch.prev_sampled_token_ids = None

    return receive


def _yes() -> bool:
    return True
