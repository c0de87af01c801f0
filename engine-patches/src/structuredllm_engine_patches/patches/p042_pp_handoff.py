"""p042: pipeline stages do not wait for sampled ids that they will not use."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import pp_handoff

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return pp_handoff.build(original)


PATCH = Patch(
    id="p042-pp-handoff",
    title="Leave out the broadcast of sampled ids between stages where the scheduler knows them in time",
    processes=(Process.WORKER,),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{RUNNER}.execute_model",
                f"{RUNNER}._pp_broadcast_prev_sampled_token_ids",
                f"{RUNNER}._pp_receive_prev_sampled_token_ids_to_input_batch",
            ),
            fingerprints={
                f"{RUNNER}.execute_model": "e54a776775633274",
                f"{RUNNER}.sample_tokens": "6f8a7f4715597334",
                f"{RUNNER}._pp_broadcast_prev_sampled_token_ids": "deda2dd8b8fa8fa6",
                f"{RUNNER}._pp_receive_prev_sampled_token_ids_to_input_batch": "1008da3d7ad56027",
                f"{RUNNER}._is_all_reqs_chunked_prefill": "bb0d4963383223df",
                f"{RUNNER}._prepare_input_ids": "91765680cbdb6831",
                f"{RUNNER}._update_states": "c1887d29258e7318",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "a measure of speed, proven on 0.32.0 only; the order is upstream's there", needed=False
        )
    },
    why=(
        "With asynchronous scheduling on the V1 runner each stage waits, before its forward pass, for the "
        "sampled ids of the immediately preceding step, whichever requests that was for. A stage cannot "
        "start a step before the last one has sampled the step before: the pipeline works on one step at a "
        "time. Where p041 guarantees that all ids are known to the scheduler nobody needs that broadcast."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/50853",
    upstream_change=(
        "On the V1 runner keep a ring of as many slots as there are stages, as the V2 runner does "
        "(`v1/worker/gpu/pp_utils.py`), or leave the broadcast out for steps after which no scheduled "
        "request has a token in flight."
    ),
    remove_when="p041 goes, or the V1 runner's hand-off does not wait any more",
    build=_build,
)
