"""p001: process queued batches until a deferred batch's masks can be right.

Upstream (vLLM 0.22 and 0.32, `EngineCore.step_with_batch_queue`) defers the sampling of a batch whose
structured requests still have a token in flight, processes one older batch and builds the mask. The seam
adds the missing part between these two: right after upstream processed its one batch, it processes as many
more as the rule in `guided.drain` asks for. Nothing of upstream's body is replaced.

Why right there and not where the mask is built: with draft tokens upstream validates the drafts of the
deferred batch against the grammar before it asks for the mask, and that needs the same tokens.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, cast

from structuredllm_engine_patches.guided import drain
from structuredllm_engine_patches.seams.ledger_hook import attach_ledger, step_key

ATTRIBUTE = "_structuredllm_drain"

Outputs = dict[int, Any]
"""Engine core outputs by client index."""

Step = Callable[[Any], tuple[Outputs | None, bool]]


def build_step(original: Step) -> Step:
    """Return the replacement of `EngineCore.step_with_batch_queue`."""

    @wraps(original)
    def step_with_batch_queue(core: Any) -> tuple[Outputs | None, bool]:
        return attach_drain(core).run(original)

    return step_with_batch_queue


def attach_drain(core: Any) -> "BatchQueueDrain":
    """Return the drain of an engine core, hooking it up at the first call."""
    existing = getattr(core, ATTRIBUTE, None)
    if existing is None:
        existing = BatchQueueDrain(core)
        setattr(core, ATTRIBUTE, existing)
    return cast(BatchQueueDrain, existing)


class BatchQueueDrain:
    """The drain of one engine core. Used from the engine core's loop only, one step at a time.

    Attributes:
        drained_batches: how many batches it processed since the start.
    """

    def __init__(self, core: Any) -> None:
        self.drained_batches = 0
        self._core = core
        self._deferred: Any = None
        self._drained_outputs: list[Outputs] = []
        # The ledger's hooks have to lie below ours: a batch that we process must be noted too.
        self._ledger = attach_ledger(core.scheduler)
        self._schedule = core.scheduler.schedule
        self._update_from_output = core.scheduler.update_from_output
        core.scheduler.schedule = self._schedule_and_remember
        core.scheduler.update_from_output = self._update_and_drain

    def run(self, original: Step) -> tuple[Outputs | None, bool]:
        """Run one step of the engine core and hand out what it and the drained batches produced."""
        self._deferred = None
        self._drained_outputs = []
        outputs, model_executed = original(self._core)
        if self._drained_outputs:
            outputs = deliver_in_order(self._core, [outputs or {}, *self._drained_outputs])
            self._drained_outputs = []
        return outputs, model_executed

    def _schedule_and_remember(self, *args: Any, **kwargs: Any) -> Any:
        scheduler_output = self._schedule(*args, **kwargs)
        # Upstream's own condition for deferring: a structured request still has a token in flight.
        if scheduler_output.pending_structured_output_tokens:
            self._deferred = scheduler_output
        return scheduler_output

    def _update_and_drain(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = self._update_from_output(scheduler_output, *args, **kwargs)
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._drain_for(deferred)
        return outputs

    def _drain_for(self, deferred: Any) -> None:
        """Process the queued batches that hold an earlier step of the deferred batch's structured requests.

        The ids are read once, before anything is processed: a request can finish or be aborted inside a
        drained batch and is then unknown to the scheduler, which upstream's mask building expects.
        """
        queue = self._core.batch_queue
        waiting = self._ledger.requests_of(step_key(deferred))
        # Upstream appends on the left and pops on the right, so the oldest batch is the last element.
        queued = [self._ledger.requests_of(step_key(entry[1])) for entry in reversed(queue)]
        for _ in range(drain.batches_to_drain(waiting, queued)):
            self._drained_outputs.append(self._process_oldest())
            self.drained_batches += 1

    def _process_oldest(self) -> Outputs:
        """Process the oldest queued batch as upstream does; a failure leaves by the same way."""
        core = self._core
        future, scheduler_output, execute_future = core.batch_queue.pop()
        with (
            iteration_details_of(core, scheduler_output) as iteration_details,
            core.log_error_detail(scheduler_output),
        ):
            model_output = future.result()
            if model_output is None:
                # No output of the sampling means that the forward pass before it failed: raise that error.
                execute_future.result()
                raise RuntimeError(
                    "a drained batch has no model output and its forward pass reported no error"
                )
        core._process_aborts_queue()
        outputs: Outputs = self._update_from_output(scheduler_output, model_output) or {}
        # vLLM 0.22 has nothing to attach.
        if hasattr(core, "_attach_iteration_details"):
            core._attach_iteration_details(outputs, iteration_details)
        if hasattr(core, "_attach_weight_version"):
            core._attach_weight_version(outputs)
        return outputs


def iteration_details_of(core: Any, scheduler_output: Any) -> AbstractContextManager[Any]:
    """Return upstream's context for one processed batch: it notes details in 0.32, 0.22 only logs them."""
    if hasattr(core, "capture_iteration_details"):
        return cast(AbstractContextManager[Any], core.capture_iteration_details(scheduler_output))
    return cast(AbstractContextManager[Any], core.log_iteration_details(scheduler_output))


def deliver_in_order(core: Any, groups: list[Outputs]) -> Outputs:
    """Hand out several steps' outputs, oldest first, and return what the step itself has to return.

    All but the last go to the output queue of the engine core process, the last is returned and queued
    after them by upstream. Any other order swaps tokens of a plain request. An engine core inside the
    caller's process has no such queue; there the outputs become one.
    """
    queue = getattr(core, "output_queue", None)
    if queue is None:
        return merge_outputs(groups)
    for group in groups[:-1]:
        for item in group.items():
            queue.put_nowait(item)
    return groups[-1]


def merge_outputs(groups: list[Outputs]) -> Outputs:
    """Return several steps' outputs as one: in order for each client, the newest statistics kept."""
    merged: Outputs = {}
    for group in groups:
        for client, later in group.items():
            earlier = merged.get(client)
            if earlier is None:
                merged[client] = later
                continue
            later.outputs = [*earlier.outputs, *later.outputs]
            if earlier.finished_requests:
                later.finished_requests = set(earlier.finished_requests) | set(later.finished_requests or ())
            later.scheduler_stats = later.scheduler_stats or earlier.scheduler_stats
            merged[client] = later
    return merged
