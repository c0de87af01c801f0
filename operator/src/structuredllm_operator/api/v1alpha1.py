"""The `StructuredLLM` v1alpha1 spec as typed models: the one source of the CRD schema and its docs.

Owns field names, bounds, defaults, descriptions and CEL rules. `kubectl explain` and docs/reference show the
docstrings, so each says default, unit and an example. Must not import kopf, Kubernetes clients or I/O.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from structuredllm_operator.api.base import Model, Quantities, ShortText, rule, rules
from structuredllm_operator.api.engine_spec import EngineSpec
from structuredllm_operator.api.model_spec import ModelSpec
from structuredllm_operator.api.multi_node_spec import (
    POD_WORKERS,
    POD_WORKERS_IN_WORDS,
    WORKER_RULES,
    MultiNodeSpec,
)
from structuredllm_operator.api.placement_spec import CLAIM_RULES, PlacementSpec


class WarmupPolicy(StrEnum):
    """What a failed burst does."""

    REQUIRED = "Required"
    BEST_EFFORT = "BestEffort"
    DISABLED = "Disabled"


class Backend(StrEnum):
    """Structured output backend of the engine."""

    AUTO = "auto"
    XGRAMMAR = "xgrammar"
    GUIDANCE = "guidance"


class Streaming(StrEnum):
    """How a structured stream reaches its client."""

    TRAILING = "Trailing"
    BUFFER = "Buffer"


class Validation(StrEnum):
    """What the gateway does with a structured answer."""

    OFF = "Off"
    OBSERVE = "Observe"
    ENFORCE = "Enforce"


class RoutingPolicy(StrEnum):
    """How the gateway picks a replica."""

    LEAST_OUTSTANDING = "LeastOutstanding"
    PREFIX_HASH = "PrefixHash"
    SESSION = "Session"


class ParallelismSpec(Model):
    """How the model is split over workers. A replica runs tensor x pipeline x data workers."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor parallel size: workers that share each layer. Default: 1. Example: 2."""
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline parallel size: stages that hold consecutive layers. Default: 1. Example: 3."""
    data: Annotated[int, Field(ge=1, le=64)] = 1
    """Data parallel size: copies of the model in one pod behind one server, as mixtures of experts want it.
    For other models raise spec.replicas instead. Default: 1. Example: 2."""


class StructuredOutputSpec(Model):
    """How structured output is made and checked."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.backend != 'auto' || !self.disableAnyWhitespace",
                "spec.structuredOutput.disableAnyWhitespace needs backend xgrammar or guidance: with"
                " backend auto"
                " set it to false",
            )
        )
    )

    backend: Backend = Backend.XGRAMMAR
    """Grammar backend of the engine: auto, xgrammar or guidance. Default: xgrammar."""
    disable_any_whitespace: bool = True
    """Answer compact JSON: no free whitespace in which a small model can get lost. Default: true."""
    validation: Validation = Validation.ENFORCE
    """What the gateway does with a structured answer: Off (pass), Observe (count), Enforce (refuse what does
    not fit its schema). Default: Enforce."""
    streaming: Streaming = Streaming.TRAILING
    """How the gateway delivers a structured stream: Trailing (at once, the verdict after it) or Buffer (held
    until it is judged, so that a wrong one can be refused and tried again). Default: Trailing."""
    repair: bool = False
    """Last resort of the gateway with validation Enforce: ask once more for an answer that is wrong on every
    try, with its violation told to the model. Default: false."""


class BurstSpec(Model):
    """Size of the cold structured burst."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.requests >= self.concurrency",
                "spec.warmup.burst.requests must be at least spec.warmup.burst.concurrency: otherwise"
                " that many"
                " requests are never in flight together",
            )
        )
    )

    requests: Annotated[int, Field(ge=1, le=1000)] = 24
    """Requests per burst, each with a schema that the engine has not seen. Default: 24."""
    concurrency: Annotated[int, Field(ge=2, le=256)] = 24
    """Requests in flight together; must be above spec.parallelism.pipeline. Default: 24."""


class WarmupSpec(Model):
    """The gate: what a pod must prove before it is Ready."""

    policy: WarmupPolicy = WarmupPolicy.REQUIRED
    """Required: a pod is Ready only after a burst without a fault. BestEffort: the burst is sent and
    reported, the pod becomes Ready in any case. Disabled: no burst. Default: Required."""
    burst: BurstSpec = BurstSpec()
    """Size of the burst."""
    timeout_seconds: Annotated[int, Field(ge=5, le=3600)] = 120
    """Time for one whole burst, in seconds. Default: 120."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Bursts repeated after a failed one, per container. Default: 3."""
    retry_backoff_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Wait before the first repetition, in seconds; doubles each time, up to 600. Default: 30."""


class RoutingSpec(Model):
    """How the gateway spreads requests over the pods."""

    policy: RoutingPolicy | None = None
    """LeastOutstanding: to the pod with the fewest requests. PrefixHash: prompts with the same start go to
    the same pod, where that start is cached. Session: requests of one session (header `x-session-id`, else
    the field `user`) go to the same pod. Default: the gateway's setting routing.policy.
    Example: `PrefixHash`."""


class RolloutStrategy(Model):
    """How pods are replaced, in pods that passed the gate."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.maxSurge > 0 || self.maxUnavailable > 0",
                "spec.rolloutStrategy: maxSurge and maxUnavailable must not both be 0: set"
                " maxUnavailable to 1 to roll"
                " without spare GPUs, or maxSurge to 1 to roll without loss of capacity",
            )
        )
    )

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 0
    """Pods above spec.replicas during a rollout. Default: 0 (no spare GPU needed)."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods below spec.replicas during a rollout. Default: 1."""


class DisruptionSpec(Model):
    """Voluntary disruptions, as node drains."""

    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods that may be evicted together; a PodDisruptionBudget is made from two replicas on. Default: 1."""


class ShutdownSpec(Model):
    """How an engine ends."""

    drain_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """Time for running requests when a pod ends, in seconds; the grace period is 15 s longer. Default: 30."""


class ResourcesSpec(Model):
    """Compute resources of the engine container."""

    requests: Quantities = {}
    """Requested resources. Default: none. Example: `{cpu: "4", memory: 32Gi}`."""
    limits: Quantities = {}
    """Resource limits of one pod. The GPU limit must equal tensor x pipeline x data / nodeCount and is set
    when it is missing. Default: none. Example: `{nvidia.com/gpu: 3}`."""


class Toleration(Model):
    """A Kubernetes toleration."""

    key: ShortText | None = None
    """Taint key. Default: all keys. Example: `nvidia.com/gpu`."""
    operator: Annotated[str, Field(json_schema_extra={"enum": ["Exists", "Equal"]})] | None = None
    """Exists or Equal. Default: Equal."""
    value: ShortText | None = None
    """Taint value. Default: empty."""
    effect: (
        Annotated[str, Field(json_schema_extra={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]})]
        | None
    ) = None
    """Taint effect. Default: all effects."""
    toleration_seconds: int | None = None
    """Seconds to stay on a node with a NoExecute taint. Default: for ever."""


def _gpu_rule(part: str) -> dict[str, str]:
    return rule(
        f"self.engine.accelerator != 'gpu' || !has(self.resources.{part})"
        f" || !(self.engine.gpuResourceName in self.resources.{part})"
        f" || string(self.resources.{part}[self.engine.gpuResourceName]) == string({POD_WORKERS})",
        f"spec.resources.{part}: the GPU count of a pod must be {POD_WORKERS_IN_WORDS}; correct it, or remove"
        " it and the operator sets it",
    )


def _no_gpu_rule(part: str) -> dict[str, str]:
    return rule(
        f"self.engine.accelerator != 'cpu' || !has(self.resources.{part})"
        f" || self.resources.{part}.all(k, k != self.engine.gpuResourceName && !k.endsWith('/gpu'))",
        f"spec.resources.{part} names a GPU, but spec.engine.accelerator is cpu: remove the GPU, or set"
        " accelerator gpu",
    )


class StructuredLLMSpec(Model):
    """What should run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *WORKER_RULES,
            *CLAIM_RULES,
            rule(
                "self.engine.type != 'lmdeploy' || self.parallelism.pipeline == 1",
                "spec.parallelism.pipeline must be 1 with spec.engine.type lmdeploy, which has no pipeline"
                " parallelism: use spec.parallelism.tensor",
            ),
            rule(
                "self.engine.type != 'lmdeploy' || self.structuredOutput.backend != 'guidance'",
                "spec.structuredOutput.backend must be xgrammar or auto with spec.engine.type lmdeploy",
            ),
            _gpu_rule("limits"),
            _gpu_rule("requests"),
            _no_gpu_rule("limits"),
            _no_gpu_rule("requests"),
        )
    )

    model: ModelSpec
    """Which model the engine serves. Required."""
    engine: EngineSpec
    """The engine image and how it is started. Required."""
    parallelism: ParallelismSpec = ParallelismSpec()
    """How the model is split over workers."""
    multi_node: MultiNodeSpec = MultiNodeSpec()
    """Engines that span several nodes."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of engines: pods, or groups of nodeCount pods. Default: 1. `kubectl scale` writes it."""
    structured_output: StructuredOutputSpec = StructuredOutputSpec()
    """How structured output is made and checked."""
    warmup: WarmupSpec = WarmupSpec()
    """The gate: what a pod must prove before it is Ready."""
    routing: RoutingSpec = RoutingSpec()
    """How the gateway spreads requests over the pods."""
    rollout_strategy: RolloutStrategy = RolloutStrategy()
    """How pods are replaced."""
    disruption: DisruptionSpec = DisruptionSpec()
    """Voluntary disruptions, as node drains."""
    shutdown: ShutdownSpec = ShutdownSpec()
    """How an engine ends."""
    resources: ResourcesSpec = ResourcesSpec()
    """Compute resources of the engine container."""
    node_selector: Annotated[dict[str, ShortText], Field(max_length=32)] = {}
    """Node labels that a node must have. Default: none. Example: `{gpu-model: h200}`."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that pods tolerate. Default: none."""
    placement: PlacementSpec = PlacementSpec()
    """Where pods go, beyond nodeSelector and tolerations."""
