"""p041: the decodes of a burst do not all go into one phase of the pipeline."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.guided.phase_choice import AlwaysSpread, PhaseChoice
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import phase_balancing
from structuredllm_engine_patches.settings import Phases

ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    phases = installation.settings.phases
    return phase_balancing.build_schedule(
        original,
        enabled=phases is not Phases.OFF,
        logger=installation.logger,
        choice=AlwaysSpread if phases is Phases.ON else PhaseChoice,
    )


PATCH = Patch(
    id="p041-phase-balancing",
    title="Spread the decodes over the pipeline's phases, never with a token in flight",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{ASYNC_SCHEDULER}.schedule",),
            fingerprints={
                f"{ASYNC_SCHEDULER}.schedule": "7c9dcab5545e728a",
                f"{ASYNC_SCHEDULER}._update_after_schedule": "131e68f61c31398d",
                f"{ASYNC_SCHEDULER}._update_request_with_output": "77c3a301776f6772",
                f"{SCHEDULER}._make_cached_request_data": "7fc979b0cfec7f4a",
                f"{SCHEDULER}._preempt_request": "41860b5a44c36ad3",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "a measure of speed, proven on 0.32.0 only; the order is upstream's there", needed=False
        )
    },
    why=(
        "A request has at most one decode step in flight, so a pipeline is full only when the requests are "
        "spread over its stages. On the V1 runner a burst stays together in one step for ever: each stage "
        "works while the others wait. Where a stage's time does not depend on the batch, spreading gains "
        "nothing and costs a little, so with STRUCTUREDLLM_PHASES=auto both are measured and the faster is "
        "taken. By default (off) the scheduler is upstream's; the drain (p001) keeps the masks right in each "
        "case."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/50853",
    upstream_change=(
        "On the V1 runner set `next_decode_eligible_step` as long as the request has a token in flight, and "
        "take at most a pipeline-size-th of the running decodes into a step, longest waiting first."
    ),
    remove_when="upstream spreads decodes over the phases, or no supported model needs the V1 runner",
    build=_build,
)
