"""GPU arithmetic of one engine pod. Pure.

    workers of a pod = tensor x pipeline          GPUs of a pod = workers (accelerator gpu) or none (cpu)

The CRD's CEL rules say the same; this is the second line, for resources stored under an older CRD.
"""

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.api.engine_spec import Accelerator
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.errors import SpecError

Quantities = dict[str, int | str]


def workers(spec: StructuredLLMSpec) -> int:
    """Return the number of engine workers in one pod."""
    return spec.parallelism.tensor * spec.parallelism.pipeline


def build_resources(spec: StructuredLLMSpec) -> dict[str, Quantities]:
    """Return the engine container's resources in wire form, with the GPU limit filled in.

    Raises:
        SpecError: reason GPUCountMismatch when a given GPU count does not equal the number of workers.
    """
    requests: Quantities = dict(sorted(spec.resources.requests.items()))
    limits: Quantities = dict(sorted(spec.resources.limits.items()))
    gpu = spec.engine.gpu_resource_name
    for part, given in (("limits", limits), ("requests", requests)):
        if spec.engine.accelerator is Accelerator.CPU:
            named = [key for key in given if key == gpu or key.endswith("/gpu")]
            if named:
                raise SpecError(
                    Reason.GPU_COUNT_MISMATCH,
                    f"spec.resources.{part}: {named[0]} is given, but spec.engine.accelerator is cpu:"
                    " remove it, or set accelerator gpu",
                )
        elif gpu in given and str(given[gpu]) != str(workers(spec)):
            raise SpecError(
                Reason.GPU_COUNT_MISMATCH,
                f"spec.resources.{part}: {gpu} is {given[gpu]}, but must be {workers(spec)}"
                " (spec.parallelism.tensor x spec.parallelism.pipeline): correct or remove it",
            )
    if spec.engine.accelerator is Accelerator.GPU:
        limits[gpu] = workers(spec)
    return {part: values for part, values in (("requests", requests), ("limits", limits)) if values}
