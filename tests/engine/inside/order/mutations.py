"""Wrong cures, each of which the model test has to find."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from structuredllm_engine_patches.guided import drain
from structuredllm_engine_patches.seams import batch_queue, token_handoff
from tests.engine.inside.order.workers import Workers

Mutation = Callable[[], Any]


@contextmanager
def drain_removed() -> Iterator[None]:
    """Upstream as it is: one batch is processed for a deferred one, whatever it holds."""
    with patch.object(drain, "batches_to_drain", lambda waiting, queued: 0):
        yield


@contextmanager
def handoff_unguarded() -> Iterator[None]:
    """A request that was left out of a step comes back with its token in flight (without p045)."""
    with patch.object(token_handoff, "hold_back", lambda scheduler: None):
        yield


@contextmanager
def spacing_alone(less_than_queue: int) -> Iterator[None]:
    """No drain; the steps of a structured request are `queue size - less_than_queue` apart.

    Q-1 is what upstream's single pop needs for its masks, and then the input tokens are still wrong; Q-2 is
    too small for the masks as well. Without p045, which would wait where the spacing is too small.
    """
    update = AsyncScheduler._update_after_schedule

    def update_and_space(scheduler: Any, step: Any) -> None:
        update(scheduler, step)
        spacing = scheduler.vllm_config.max_concurrent_batches - less_than_queue
        for name in step.num_scheduled_tokens:
            request = scheduler.requests[name]
            if request.use_structured_output and not request.is_prefill_chunk:
                request.next_decode_eligible_step = scheduler.current_step + spacing

    with (
        drain_removed(),
        handoff_unguarded(),
        patch.object(AsyncScheduler, "_update_after_schedule", update_and_space),
    ):
        yield


@contextmanager
def spacing_too_small() -> Iterator[None]:
    """No drain and steps Q-2 apart, looked at for its masks alone: every input token is taken for right."""
    with spacing_alone(less_than_queue=2), patch.object(Workers, "_is_there", lambda *_: True):
        yield


@contextmanager
def placeholders_counted() -> Iterator[None]:
    """A step in flight is taken for one placeholder, as in vLLM pull request 45015."""

    def drain_for(self: Any, deferred: Any) -> None:
        scheduler, queue = self._core.scheduler, self._core.batch_queue

        def in_flight() -> bool:
            requests = [scheduler.requests.get(name) for name in deferred.num_scheduled_tokens]
            return any(r and r.use_structured_output and r.num_output_placeholders > 1 for r in requests)

        while queue and in_flight():
            self._drained_outputs.append(self._process_oldest())

    with patch.object(batch_queue.BatchQueueDrain, "_drain_for", drain_for):
        yield


@contextmanager
def outputs_out_of_order() -> Iterator[None]:
    """What the drained batches gave is sent before what the step's own batch gave."""
    deliver = batch_queue.deliver_in_order

    def deliver_wrongly(core: Any, groups: list[Any]) -> Any:
        return deliver(core, [*groups[1:], groups[0]])

    with patch.object(batch_queue, "deliver_in_order", deliver_wrongly):
        yield
