"""The `StructuredLLM` v1alpha1 status as typed models: source of the status schema and of its docs.

Status is written by the operator only. Must not import kopf, Kubernetes clients or I/O.
"""

from typing import Annotated

from pydantic import Field

from structuredllm_operator.api.base import Model
from structuredllm_operator.api.model_spec import ModelStatus


class ConditionStatus(Model):
    """A condition in the shape of metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    """SpecValid, WorkloadReady, TopologyVerified, StructuredReady, Ready, Progressing, Quarantined or
    SpecWarning."""
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    """True, False or Unknown (could not be checked)."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word. Example: `GrammarRejected`."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, as a sentence, and what to do."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    observed_generation: Annotated[int, Field(ge=0)]
    """metadata.generation that this condition speaks of."""


class EngineStatus(Model):
    """What the engine itself reports."""

    vllm_version: str | None = None
    """vLLM version. Example: `0.32.0`."""
    patches: Annotated[
        list[str], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Ids of the active engine patches. Example: `["p001-batch-queue-drain"]`."""
    world_size: int | None = None
    """Workers of one engine."""
    pipeline: int | None = None
    """Pipeline parallel size."""
    tensor: int | None = None
    """Tensor parallel size."""
    async_scheduling: bool | None = None
    """Whether async scheduling is on."""


class FailureStatus(Model):
    """The latest failure of a pod; stays until a newer one."""

    pod: str
    """Name of the pod."""
    reason: str
    """Reason as one word. Example: `EngineCrashed`."""
    message: str
    """The engine's, the kubelet's or the burst's own words."""
    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it happened."""


class StructuredLLMStatus(Model):
    """What runs."""

    observed_generation: int | None = None
    """metadata.generation that this status speaks of."""
    url: str | None = None
    """Where clients send requests."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    replicas: int | None = None
    """Engines that exist: pods, or groups of pods that are one engine."""
    ready_replicas: int | None = None
    """Engines whose containers are ready, gate or not."""
    serving_replicas: int | None = None
    """Engines that are Ready and passed the gate with the container that runs now."""
    updated_replicas: int | None = None
    """Engines of the current revision."""
    current_revision: str | None = None
    """Hash of the current pod template."""
    engine: EngineStatus | None = None
    """What the engine itself reports."""
    model: ModelStatus | None = None
    """The copy of the model on the cache claim."""
    last_failure: FailureStatus | None = None
    """The latest failure of a pod."""
    conditions: Annotated[
        list[ConditionStatus],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """SpecValid, WorkloadReady, TopologyVerified, StructuredReady, Ready, Progressing, Quarantined,
    SpecWarning."""
