"""p006: a structured request ends where its grammar ends."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import end_of_output

PARAMS = "vllm.sampling_params"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return end_of_output.build_update(original)


PATCH = Patch(
    id="p006-end-of-output",
    title="Let structured requests stop at the end token also with ignore_eos",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            targets=(f"{PARAMS}:SamplingParams.update_from_generation_config",),
            fingerprints={
                f"{PARAMS}:SamplingParams.update_from_generation_config": "fe97c887bef2f021",
                f"{PARAMS}:StructuredOutputsParams.all_constraints_none": "a3d207271cadf058",
            },
        ),
    },
    unfit={"0.22.1": Unfit("ignore_eos lets free text follow a complete answer there too", needed=True)},
    why=(
        "With `ignore_eos` the grammar takes the end token and is over, but the request goes on without any "
        "mask: free text follows the complete answer up to `max_tokens`. Nothing can follow a complete "
        "answer, so a structured request stops at its end token, with finish reason `stop`, whatever "
        "`ignore_eos` says. Requests without a constraint keep `ignore_eos`."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/49173",
    upstream_change=(
        "Ignore or refuse `ignore_eos` where `structured_outputs` is set, or end the request when its grammar"
        " has terminated."
    ),
    remove_when="upstream ends a structured request when its grammar has terminated",
    build=_build,
)
