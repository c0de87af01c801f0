"""p003: watch an engine core and open its telemetry port when it is complete.

Wraps bound methods of the one engine core: where its scheduler asks whether a grammar takes the sampled
tokens (vLLM 0.32) or ends a request because it did not (0.22), and where it builds masks. Changes nothing of
what they return.
"""

import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from structuredllm_engine_patches.seams.async_guard import forced_off
from structuredllm_engine_patches.seams.batch_queue import ATTRIBUTE as DRAIN_ATTRIBUTE
from structuredllm_engine_patches.seams.ledger_hook import attach_ledger, step_key
from structuredllm_engine_patches.telemetry.exposition import EngineFacts
from structuredllm_engine_patches.telemetry.metrics import (
    BACKENDS,
    DRAINED_BATCHES,
    GRAMMAR_REJECTS,
    IN_FLIGHT_STEPS,
    MASK_FILL,
    PIPELINE_SLOTS,
    PIPELINE_SLOTS_USED,
    STALE_MASKS,
    STRUCTURED_REQUESTS,
)
from structuredllm_engine_patches.telemetry.observation import Observation

LOGGED_STALE_MASKS = 10
REQUEST_STATES = {"RUNNING": "running", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "waiting_for_grammar"}
"""vLLM's request status to the state that the metric shows; every other one is `waiting`."""

Clock = Callable[[], float]

Loop = Callable[[Any], None]
MakeFacts = Callable[[Any], EngineFacts]


def build_loop(original: Loop, on_complete: Callable[[Any], None]) -> Loop:
    """Return the replacement of `run_busy_loop`: `on_complete(core)`, then upstream's loop.

    The loop starts right after the engine core was made, before it takes a request.
    """

    @wraps(original)
    def run_busy_loop(core: Any) -> None:
        on_complete(core)
        original(core)

    return run_busy_loop


def read_facts(vllm_config: Any, *, vllm_version: str, package_version: str, policy: str) -> EngineFacts:
    """Return what /info says about an engine with this configuration."""
    parallel = vllm_config.parallel_config
    return EngineFacts(
        vllm_version=vllm_version,
        package_version=package_version,
        policy=policy,
        tensor_parallel_size=int(parallel.tensor_parallel_size),
        pipeline_parallel_size=int(parallel.pipeline_parallel_size),
        data_parallel_size=int(parallel.data_parallel_size),
        world_size=int(parallel.world_size),
        async_scheduling=bool(vllm_config.scheduler_config.async_scheduling),
        async_scheduling_forced_off=forced_off(vllm_config),
        model=str(vllm_config.model_config.model),
        structured_outputs_backend=str(vllm_config.structured_outputs_config.backend),
    )


def observe(core: Any, observation: Observation, logger: logging.Logger, clock: Clock) -> None:
    """Keep the metrics of an engine core from now on; `clock` gives seconds and never goes back."""
    _expect_rejects(str(core.vllm_config.structured_outputs_config.backend), observation)
    if hasattr(core.structured_output_manager, "accept_tokens"):
        _count_rejects(core.structured_output_manager, observation)
    else:
        _count_rejected_ends(core.scheduler, observation)
    _watch_masks(core.scheduler, observation, logger, clock)
    _read_queue(core, observation)
    _read_requests(core.scheduler, observation)


def _expect_rejects(backend: str, observation: Observation) -> None:
    for name in BACKENDS[:2] if backend == "auto" else (backend,):
        observation.add(GRAMMAR_REJECTS, 0, backend=name)


def _count_rejects(manager: Any, observation: Observation) -> None:
    accept_tokens = manager.accept_tokens

    def accept_and_count(request: Any, new_token_ids: list[int]) -> bool:
        accepted: bool = accept_tokens(request, new_token_ids)
        # The scheduler ends the request with an error on a False. Draft tokens never come this way: they are
        # validated on the grammar itself, and their refusal is normal.
        if not accepted:
            observation.add(GRAMMAR_REJECTS, backend=_backend_of(request))
        return accepted

    manager.accept_tokens = accept_and_count


def _count_rejected_ends(scheduler: Any, observation: Observation) -> None:
    """Count where there is no single place that asks the grammar (vLLM 0.22).

    There a structured request is stopped with an error inside `update_from_output` for this reason only;
    blocks that could not be loaded end a request elsewhere.
    """
    handle_stopped_request = scheduler._handle_stopped_request

    def count_and_handle(request: Any) -> bool:
        if request.use_structured_output and request.status.name == "FINISHED_ERROR":
            observation.add(GRAMMAR_REJECTS, backend=_backend_of(request))
        finished: bool = handle_stopped_request(request)
        return finished

    scheduler._handle_stopped_request = count_and_handle


def _read_queue(core: Any, observation: Observation) -> None:
    def drained_batches() -> int:
        drain = getattr(core, DRAIN_ATTRIBUTE, None)
        return 0 if drain is None else int(drain.drained_batches)

    def slots_used() -> int:
        return sum(entry[1].total_num_scheduled_tokens > 0 for entry in tuple(core.batch_queue or ()))

    observation.read(DRAINED_BATCHES, drained_batches)
    observation.read(IN_FLIGHT_STEPS, lambda: len(core.batch_queue or ()))
    observation.read(PIPELINE_SLOTS, lambda: core.batch_queue_size)
    observation.read(PIPELINE_SLOTS_USED, slots_used)


def _read_requests(scheduler: Any, observation: Observation) -> None:
    def count(state: str) -> int:
        # A copy in one C call: the loop changes the dict while the scrape's thread looks at it.
        requests = list(scheduler.requests.values())
        return sum(r.use_structured_output and _state_of(r) == state for r in requests)

    for state in STRUCTURED_REQUESTS.labels["state"]:
        observation.read(STRUCTURED_REQUESTS, partial(count, state), state=state)


def _state_of(request: Any) -> str:
    return REQUEST_STATES.get(request.status.name, "waiting")


def _watch_masks(scheduler: Any, observation: Observation, logger: logging.Logger, clock: Clock) -> None:
    ledger = attach_ledger(scheduler)
    get_grammar_bitmask = scheduler.get_grammar_bitmask

    def check_and_build(scheduler_output: Any) -> Any:
        for request_id in ledger.behind(step_key(scheduler_output)):
            # A request that ended inside a drained batch needs no mask.
            if request_id not in scheduler.requests:
                continue
            if observation.add(STALE_MASKS) <= LOGGED_STALE_MASKS:
                logger.error(
                    "stale mask: the mask of request %s is built while an earlier token of it is still in "
                    "flight; its output can break its schema (logged for the first %d only)",
                    request_id,
                    LOGGED_STALE_MASKS,
                )
        if not scheduler_output.has_structured_output_requests:
            return get_grammar_bitmask(scheduler_output)
        began = clock()
        masks = get_grammar_bitmask(scheduler_output)
        observation.observe(MASK_FILL, clock() - began)
        return masks

    scheduler.get_grammar_bitmask = check_and_build


def _backend_of(request: Any) -> str:
    params = getattr(request.sampling_params, "structured_outputs", None)
    return str(getattr(params, "_backend", None))
