"""p020: the cause's way through the front-end."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import error_reason

COMPLETION_OUTPUT = "vllm.v1.engine.output_processor:RequestState._new_completion_output"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return error_reason.build_new_completion_output(original)


PATCH = Patch(
    id="p020-error-reason",
    title="Carry the cause of a failed request to where the front-end raises its error",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(COMPLETION_OUTPUT,), fingerprints={COMPLETION_OUTPUT: "55aae11bef50a843"})},
    unfit={"0.22.1": Unfit("there are no causes to carry without p007", needed=True)},
    why=(
        "The front-end decides on the finish reason alone whether a request failed; the cause that p007 put "
        "into the stop reason does not reach that place."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change="Hand the stop reason to `_raise_if_error` next to the finish reason.",
    remove_when="p007 goes",
    build=_build,
)
