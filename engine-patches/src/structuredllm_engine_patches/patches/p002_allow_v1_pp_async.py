"""p002: the combination that upstream refuses because of the fault that p001 cures."""

import importlib
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.patches import p001_batch_queue_drain
from structuredllm_engine_patches.seams import runner_validation
from structuredllm_engine_patches.telemetry.observation import State

FEATURES = "vllm.config.vllm:VllmConfig._get_v1_model_runner_unsupported_features"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    def drain_is_active() -> bool:
        # The front-end validates its configuration before it needs the engine core's module.
        importlib.import_module(p001_batch_queue_drain.ENGINE_CORE)
        return installation.state_of(p001_batch_queue_drain.PATCH.id) is State.ACTIVE

    return runner_validation.build_features(original, drain_is_active=drain_is_active)


PATCH = Patch(
    id="p002-allow-v1-pp-async",
    title="Allow pipeline + asynchronous scheduling on the V1 model runner while the drain is active",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(FEATURES,), fingerprints={FEATURES: "075a6453dc626561"})},
    unfit={"0.22.1": Unfit("this version does not refuse the combination", needed=False)},
    why=(
        "vLLM 0.32 refuses the combination at start-up because of the fault that p001 cures, so models that"
        " only the V1 runner supports lose asynchronous scheduling. The refusal stays with speculative "
        "decoding."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/56250",
    upstream_change="With p001's change in place, drop the entry from the list of unsupported features.",
    remove_when="p001 goes, or upstream lifts the refusal",
    build=_build,
)
