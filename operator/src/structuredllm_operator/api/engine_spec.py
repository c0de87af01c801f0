"""The engine's part of the spec: image, arguments, environment, and which of them the operator owns.

Owns these fields and their CEL rules. Pure, as all of `api`.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from structuredllm_operator.api.base import KeySelector, Model, ObjectName, rule, rules
from structuredllm_operator.api.labels import OWNED_ARGS, OWNED_ENV, OWNED_SHORT_ARGS


class Accelerator(StrEnum):
    """What the engine runs on."""

    GPU = "gpu"
    CPU = "cpu"


class EngineType(StrEnum):
    """Which engine runs in the image."""

    VLLM = "vllm"
    LMDEPLOY = "lmdeploy"


class PatchPolicy(StrEnum):
    """What happens when an engine patch is not active."""

    REQUIRED = "Required"
    OPTIONAL = "Optional"
    DISABLED = "Disabled"


class PullPolicy(StrEnum):
    """Kubernetes image pull policies."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class OptionalKeySelector(KeySelector):
    """One key of a Secret or ConfigMap that may be missing."""

    optional: bool | None = None
    """Start the engine also when the object or key is missing. Default: false."""


class FieldSelector(Model):
    """A field of the engine's pod."""

    field_path: ObjectName
    """Path of the field. Required. Example: `status.podIP`."""


class EnvSource(Model):
    """Where an environment variable's value comes from; exactly one of the fields."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.secretKeyRef) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0)"
                " + (has(self.fieldRef) ? 1 : 0) == 1",
                "valueFrom needs exactly one of secretKeyRef, configMapKeyRef, fieldRef",
            )
        )
    )

    secret_key_ref: OptionalKeySelector | None = None
    """A key of a Secret. Default: not set."""
    config_map_key_ref: OptionalKeySelector | None = None
    """A key of a ConfigMap. Default: not set."""
    field_ref: FieldSelector | None = None
    """A field of the pod. Default: not set."""


class EnvVar(Model):
    """One environment variable of the engine container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.value) && has(self.valueFrom))",
                "an env entry has either value or valueFrom, not both: remove one",
            ),
            rule(
                f"!(self.name in {list(OWNED_ENV)})",
                message_expression="'spec.engine.env: ' + self.name + ' is set by the operator:"
                " use spec.engine.patches instead and remove the entry'",
            ),
            rule(
                "self.name != 'VLLM_PLUGINS' || !has(self.valueFrom)",
                "spec.engine.env: VLLM_PLUGINS must be a plain value, so that the operator can add its"
                " own plugin",
            ),
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable. Required. Example: `VLLM_LOGGING_LEVEL`."""
    value: Annotated[str, Field(max_length=8192)] | None = None
    """Value of the variable. Default: empty. Example: `DEBUG`."""
    value_from: EnvSource | None = None
    """Source of the value, instead of `value`. Default: not set."""


# vLLM's parser reads '_' as '-' and 'a.b=1' as a key of argument a's JSON value.
_OWNED_PATTERN: Final = (
    "^(--("
    + "|".join(arg[2:].replace("-", "[-_]") for arg in OWNED_ARGS)
    + ")([=.].*)?|-("
    + "|".join(arg[1:] for arg in OWNED_SHORT_ARGS)
    + ")(=.*|[0-9].*)?)$"
)
_OWNED_TEST: Final = f"a.matches(r'{_OWNED_PATTERN}')"


class EngineSpec(Model):
    """The engine image and how it is started."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.type != 'lmdeploy' || self.accelerator == 'gpu'",
                "spec.engine.accelerator must be gpu with spec.engine.type lmdeploy: its TurboMind has no CPU"
                " build",
            ),
        )
    )

    type: EngineType = EngineType.VLLM
    """`vllm`: vLLM with the structuredllm engine patches. `lmdeploy`: LMDeploy's api_server with TurboMind,
    0.16.0 or newer; it has no pipeline parallelism and no patches, and disableAnyWhitespace has no effect on
    it. The gate is the same. Default: vllm."""
    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Image with vLLM and the structuredllm engine patches, or with LMDeploy. Required.
    Example: `example/vllm-structuredllm:0.32.0`."""
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When the image is pulled. Default: IfNotPresent."""
    accelerator: Accelerator = Accelerator.GPU
    """`gpu` or `cpu`. With `cpu` pods ask for no GPU. Default: gpu."""
    gpu_resource_name: Annotated[
        str, Field(min_length=3, max_length=253, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    ] = "nvidia.com/gpu"
    """Extended resource that stands for one GPU. Default: nvidia.com/gpu. Example: `amd.com/gpu`."""
    patches: PatchPolicy = PatchPolicy.REQUIRED
    """Required: a pod whose engine lacks an active patch never becomes ready. Optional: it may. Disabled:
    the patches are switched off in the engine. Only with type vllm. Default: Required."""
    async_scheduling: bool = True
    """Schedule the next engine step while the last one still runs. Default: true."""
    args: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1024)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(a, !({_OWNED_TEST}))",
                    "spec.engine.args holds an argument that the operator sets: remove it and use the"
                    " spec's own field",
                    message_expression=f"'spec.engine.args: ' + self.filter(a, {_OWNED_TEST})[0] + ' is set"
                    " by the operator: remove it and use the field of the spec (model, parallelism,"
                    " structuredOutput,"
                    " engine.asyncScheduling)'",
                )
            ),
        ),
    ] = []
    """Further arguments of `vllm serve` or `lmdeploy serve api_server`. Those that follow from the spec
    are refused. Default: none.
    Example: `["--max-model-len=8192"]`."""
    env: Annotated[
        list[EnvVar],
        Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """Environment variables of the engine container. Default: none.
    Example: `[{name: VLLM_LOGGING_LEVEL, value: DEBUG}]`."""

    @property
    def reports_itself(self) -> bool:
        """Whether the engine answers on a telemetry port what it runs."""
        return self.type is EngineType.VLLM

    @property
    def needs_patches(self) -> bool:
        """Whether a pod must show active patches before it may serve."""
        return self.type is EngineType.VLLM and self.patches is PatchPolicy.REQUIRED
