"""GPU arithmetic of one engine and of one of its pods. Pure.

    workers of an engine = tensor x pipeline x data        workers of a pod = workers of an engine / nodeCount
    GPUs of a pod = workers of a pod (accelerator gpu, by extended resource or by claims) or none (cpu)

vLLM numbers its ranks stage by stage, and node r has the r-th nodeCount-th of them (vllm/config/parallel.py,
`local_world_size`). So with a nodeCount that divides the pipeline, a stage's tensor parallel ranks share a
node.

The CRD's CEL rules say the same; this is the second line, for resources stored under an older CRD.
"""

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.api.engine_spec import Accelerator
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.errors import SpecError

Quantities = dict[str, int | str]


def workers(spec: StructuredLLMSpec) -> int:
    """Return the number of workers that one engine core drives: tensor x pipeline, as vLLM's world size."""
    return spec.parallelism.tensor * spec.parallelism.pipeline


def pod_workers(spec: StructuredLLMSpec) -> int:
    """Return the number of workers in one pod.

    Raises:
        SpecError: reason InvalidParallelism when they cannot be shared out evenly.
    """
    nodes, pipeline, data = spec.multi_node.node_count, spec.parallelism.pipeline, spec.parallelism.data
    if pipeline % nodes:
        raise SpecError(
            Reason.INVALID_PARALLELISM,
            f"spec.multiNode.nodeCount is {nodes}, but must divide spec.parallelism.pipeline ({pipeline}):"
            " every"
            " node holds whole pipeline stages; change one of the two",
        )
    if nodes > 1 and data > 1:
        raise SpecError(
            Reason.INVALID_PARALLELISM,
            f"spec.parallelism.data is {data}, which works on one node only: set it to 1 and raise"
            " spec.replicas,"
            " or set spec.multiNode.nodeCount to 1",
        )
    return workers(spec) * data // nodes


def claimed_gpus(spec: StructuredLLMSpec) -> int:
    """Return the GPUs that a pod's device claims bring; 0 when they come as an extended resource."""
    return sum(claim.gpus for claim in spec.placement.resource_claims)


def build_resources(spec: StructuredLLMSpec) -> dict[str, object]:
    """Return the engine container's resources in wire form, with the GPU limit or the claims filled in.

    Raises:
        SpecError: reason GPUCountMismatch when a given GPU count does not equal the pod's number of workers.
    """
    requests: Quantities = dict(sorted(spec.resources.requests.items()))
    limits: Quantities = dict(sorted(spec.resources.limits.items()))
    count, claimed = pod_workers(spec), claimed_gpus(spec)
    for part, given in (("limits", limits), ("requests", requests)):
        _check(spec, part, given, count, claimed)
    if claimed and (spec.engine.accelerator is Accelerator.CPU or claimed != count):
        raise SpecError(
            Reason.GPU_COUNT_MISMATCH,
            f"spec.placement.resourceClaims: the claims bring {claimed} GPUs, but a pod has"
            f" {count if spec.engine.accelerator is Accelerator.GPU else 'no'} GPU workers: correct their"
            " gpus",
        )
    if spec.engine.accelerator is Accelerator.GPU and not claimed:
        limits[spec.engine.gpu_resource_name] = count
    claims = [{"name": claim.name} for claim in spec.placement.resource_claims]
    parts = (("requests", requests), ("limits", limits), ("claims", claims))
    return {part: values for part, values in parts if values}


def _check(spec: StructuredLLMSpec, part: str, given: Quantities, count: int, claimed: int) -> None:
    gpu = spec.engine.gpu_resource_name
    if spec.engine.accelerator is Accelerator.CPU:
        named = [key for key in given if key == gpu or key.endswith("/gpu")]
        if named:
            raise SpecError(
                Reason.GPU_COUNT_MISMATCH,
                f"spec.resources.{part}: {named[0]} is given, but spec.engine.accelerator is cpu:"
                " remove it, or set accelerator gpu",
            )
    elif gpu in given and claimed:
        raise SpecError(
            Reason.GPU_COUNT_MISMATCH,
            f"spec.resources.{part}: {gpu} is given, but spec.placement.resourceClaims brings the GPUs:"
            " remove"
            " it, or set gpus of all claims to 0",
        )
    elif gpu in given and str(given[gpu]) != str(count):
        raise SpecError(
            Reason.GPU_COUNT_MISMATCH,
            f"spec.resources.{part}: {gpu} is {given[gpu]}, but must be {count} in each pod"
            " (spec.parallelism.tensor x spec.parallelism.pipeline x spec.parallelism.data /"
            " spec.multiNode.nodeCount): correct or remove it",
        )
