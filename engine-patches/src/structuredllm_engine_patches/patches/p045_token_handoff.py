"""p045: a request waits for its token where the V1 runner would not hand it over."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import token_handoff

SCHEDULER = "vllm.v1.core.sched.scheduler"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return token_handoff.build_schedule(original)


PATCH = Patch(
    id="p045-token-handoff",
    title="Schedule no request whose newest token the V1 runner would hand to no stage",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{SCHEDULER}:Scheduler.schedule",),
            fingerprints={
                f"{SCHEDULER}:Scheduler.schedule": "7c9dcab5545e728a",
                f"{SCHEDULER}:Scheduler._make_cached_request_data": "7fc979b0cfec7f4a",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "its scheduler has no way to leave a request out of one step, and hybrid models' block-aligned "
            "prefill can change the text of other requests",
            needed=True,
        ),
    },
    why=(
        "The V1 runner hands over the sampled ids of the immediately preceding step only. A request that was"
        " left out of one step (a block-aligned prefill chunk of a hybrid model, an encoder's budget, a "
        "pause) comes back with a token that, with three or more batches in flight, is neither handed over "
        "nor known to the scheduler. The worker then computes with a wrong input token: no error, another "
        "text, for plain requests too."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/45014",
    upstream_change=(
        "In `Scheduler.schedule`, skip a running request that has output placeholders and is not in "
        "`prev_step_scheduled_req_ids` when more than two batches can be in flight on the V1 runner, or keep "
        "the sampled ids of as many steps as can be in flight, as the V2 runner does."
    ),
    remove_when="p002 goes, or upstream's V1 runner keeps the ids of all steps in flight",
    build=_build,
)
