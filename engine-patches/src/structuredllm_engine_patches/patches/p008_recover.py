"""p008: roll a request back instead of failing it."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.patches import p024_verdict_once
from structuredllm_engine_patches.seams import recovery
from structuredllm_engine_patches.telemetry.metrics import GRAMMAR_RECOVERIES
from structuredllm_engine_patches.telemetry.observation import State

SCHEDULER = "vllm.v1.core.sched.scheduler"
ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return recovery.build_update(
        original,
        asks_once=lambda: installation.state_of(p024_verdict_once.PATCH.id) is State.ACTIVE,
        count=lambda: installation.observation.add(GRAMMAR_RECOVERIES),
        logger=installation.logger,
    )


PATCH = Patch(
    id="p008-recover",
    title="Roll a structured request back to its last accepted token when its grammar refuses one",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{SCHEDULER}:Scheduler._update_request_with_output",),
            fingerprints={
                f"{SCHEDULER}:Scheduler._update_request_with_output": "c4770fc355937746",
                f"{SCHEDULER}:Scheduler.update_from_output": "83f03f419483a1a0",
                f"{SCHEDULER}:Scheduler.schedule": "7c9dcab5545e728a",
                f"{SCHEDULER}:Scheduler._preempt_request": "41860b5a44c36ad3",
                f"{SCHEDULER}:Scheduler._make_cached_request_data": "7fc979b0cfec7f4a",
                f"{ASYNC_SCHEDULER}:AsyncScheduler._update_request_with_output": "77c3a301776f6772",
            },
        ),
    },
    unfit={"0.22.1": Unfit("one refused token ends a request there too", needed=True)},
    why=(
        "One refused token ends a request, whatever it had got so far. The grammar is now asked before the "
        "token is taken; if it refuses, the request is preempted with everything in flight dropped and "
        "computed anew from its last accepted token, at most three times. Not with draft tokens, reasoning "
        "parsers, sessions, prompt logprobs or connectors, and not in the middle of a seeded answer on the "
        "V1 runner, whose text would silently change: these end with the cause `grammar_rejected`."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change=(
        "In `update_from_output`, ask the grammar before the token is appended, and on a refusal preempt the "
        "request with `drop_stale_output=True` instead of ending it, a bounded number of times."
    ),
    remove_when="upstream recovers from a refused token itself",
    build=_build,
)
