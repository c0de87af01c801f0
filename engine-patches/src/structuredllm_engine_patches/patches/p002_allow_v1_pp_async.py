"""p002: the combination that upstream refuses, where the faults of it are cured (p001, p045)."""

import importlib
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.patches import p001_batch_queue_drain, p045_token_handoff
from structuredllm_engine_patches.seams import runner_validation
from structuredllm_engine_patches.telemetry.observation import State

CURES = {
    p001_batch_queue_drain.ENGINE_CORE: p001_batch_queue_drain.PATCH.id,
    p045_token_handoff.SCHEDULER: p045_token_handoff.PATCH.id,
}
"""Module to import, and the patch that has to be active in it."""

FEATURES = "vllm.config.vllm:VllmConfig._get_v1_model_runner_unsupported_features"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    def is_cured() -> bool:
        # The front-end validates its configuration before it needs the engine core's modules.
        for module in CURES:
            importlib.import_module(module)
        return all(installation.state_of(patch_id) is State.ACTIVE for patch_id in CURES.values())

    return runner_validation.build_features(original, is_cured=is_cured)


PATCH = Patch(
    id="p002-allow-v1-pp-async",
    title="Allow pipeline + asynchronous scheduling on the V1 model runner while its faults are cured",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(FEATURES,), fingerprints={FEATURES: "075a6453dc626561"})},
    unfit={"0.22.1": Unfit("this version does not refuse the combination", needed=False)},
    why=(
        "vLLM 0.32 refuses the combination at start-up because of the fault that p001 cures, so models that"
        " only the V1 runner supports lose asynchronous scheduling. It has one more fault, which p045 cures:"
        " both must be active. The refusal stays with speculative decoding."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/56250",
    upstream_change=(
        "With the changes of p001 and p045 in place, drop the entry from the list of unsupported features."
    ),
    remove_when="p001 and p045 go, or upstream lifts the refusal",
    build=_build,
)
