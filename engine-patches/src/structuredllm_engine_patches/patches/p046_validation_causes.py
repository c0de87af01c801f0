"""p046: a cause for what the front-end's validation refuses."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import validation_causes

VALIDATE = "vllm.sampling_params:SamplingParams._validate_structured_outputs"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return validation_causes.build_validate(original)


PATCH = Patch(
    id="p046-validation-causes",
    title="Refuse a bad constraint with a type of its own, never with a 500",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(VALIDATE,), fingerprints={VALIDATE: "669ceb13d59d4703"})},
    unfit={"0.22.1": Unfit("its refusals of bad constraints were not looked at", needed=True)},
    why=(
        "A schema with a keyword that the backend cannot enforce is refused like any other bad request, and "
        "an error that the backends' validators do not expect becomes a 500, as if the engine were at fault."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/55152",
    upstream_change=(
        "Raise a `VLLMValidationError` for every error of the backends' validators, with a code that tells "
        "an unsupported keyword from a constraint that does not compile."
    ),
    remove_when="upstream's refusals say what is wrong with a constraint, as a code",
    build=_build,
)
