"""p001: the batch queue's drain."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process
from structuredllm_engine_patches.seams import batch_queue

ENGINE_CORE = "vllm.v1.engine.core"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return batch_queue.build_step(original)


PATCH = Patch(
    id="p001-batch-queue-drain",
    title="Process queued batches until no mask of the deferred batch can be stale",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.22.1": Fit(
            targets=(f"{ENGINE_CORE}:EngineCore.step_with_batch_queue",),
            fingerprints={
                f"{ENGINE_CORE}:EngineCore.step_with_batch_queue": "4023fd7e04edda22",
                f"{ENGINE_CORE}:EngineCore._process_aborts_queue": "63a0a75ba97bed88",
                f"{ENGINE_CORE}:EngineCoreProc._process_engine_step": "c7b8548c56032748",
                "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": "c8cfd2ba3a972b14",
                "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule": (
                    "9b2483183d5b0cd5"
                ),
            },
        ),
        "0.32.0": Fit(
            targets=(f"{ENGINE_CORE}:EngineCore.step_with_batch_queue",),
            fingerprints={
                f"{ENGINE_CORE}:EngineCore.step_with_batch_queue": "ab454194e7e220a9",
                f"{ENGINE_CORE}:EngineCore._process_aborts_queue": "63a0a75ba97bed88",
                f"{ENGINE_CORE}:EngineCoreProc._process_engine_step": "c7b8548c56032748",
                "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
                "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule": (
                    "131e68f61c31398d"
                ),
            },
        ),
    },
    why=(
        "With three or more pipeline stages and asynchronous scheduling on the V1 model runner the engine "
        "defers a batch, processes exactly one older batch and builds the mask. If the older batch is not "
        "the request's previous step (empty steps while a grammar compiles, steps of plain requests, "
        "prefill chunks) the mask is one token behind, the sampled token is refused by the grammar and the "
        "request ends with an anonymous 500."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/45014",
    upstream_change=(
        "In the deferred branch of `step_with_batch_queue`, pop and process batches while one of them holds "
        "an earlier step of a structured request of the deferred batch, instead of popping exactly one, and "
        "return the outputs of all of them in order."
    ),
    remove_when=(
        "upstream drains the batch queue for deferred batches on the V1 runner, or no supported model needs"
        " that runner any more"
    ),
    build=_build,
)
