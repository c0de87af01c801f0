"""Names that are a contract with users, the gateway, the chart and the engine.

Owns constants only. Imports nothing.
"""

from typing import Final

GROUP: Final = "structuredllm.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "StructuredLLM"
PLURAL: Final = "structuredllms"

FIELD_MANAGER: Final = "structuredllm-operator"

NAME_LABEL: Final = f"{GROUP}/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
COMPONENT_ENGINE: Final = "engine"
COMPONENT_WORKER: Final = "engine-worker"
"""Pods of a multi-node engine that answer no requests: all but the leader."""
COMPONENT_DOWNLOAD: Final = "model-download"
"""Claim, Job and pod that bring a model; engines' selectors must not match them."""
MANAGED_BY: Final = "structuredllm-operator"
POD_COMPONENTS: Final = f"{COMPONENT_LABEL} in ({COMPONENT_ENGINE},{COMPONENT_WORKER})"
"""Label selector of the pods of all engines; those that answer requests have the first component."""
TEMPLATE_HASH_ANNOTATION: Final = f"{GROUP}/template-revision-hash"

GATE_CONDITION: Final = f"{GROUP}/StructuredReady"
"""Readiness gate and pod condition type. The message starts with `[<containerID>] `."""

ENGINE_CONTAINER: Final = "engine"
HTTP_PORT: Final = 8000
TELEMETRY_PORT: Final = 9464

ENV_PATCHES: Final = "STRUCTUREDLLM_PATCHES"
ENV_TELEMETRY_PORT: Final = "STRUCTUREDLLM_TELEMETRY_PORT"
ENV_TELEMETRY_HOST: Final = "STRUCTUREDLLM_TELEMETRY_HOST"
ENV_PLUGINS: Final = "VLLM_PLUGINS"
PLUGIN_NAME: Final = "structuredllm"

OWNED_ENV: Final = (ENV_PATCHES, ENV_TELEMETRY_PORT, ENV_TELEMETRY_HOST)
"""Environment variables that the operator sets from the spec; users may not set them in spec.engine.env."""

OWNED_ARGS: Final = (
    "--api-key",
    "--async-scheduling",
    "--config",
    "--data-parallel-backend",
    "--data-parallel-external-lb",
    "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-rank",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--distributed-executor-backend",
    "--guided-decoding-backend",
    "--headless",
    "--host",
    "--master-addr",
    "--master-port",
    "--model",
    "--nnodes",
    "--no-async-scheduling",
    "--node-rank",
    "--pipeline-parallel-size",
    "--port",
    "--revision",
    "--root-path",
    "--served-model-name",
    "--shutdown-timeout",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--structured-outputs-config",
    "--tensor-parallel-size",
    "--uds",
)
"""vLLM arguments that follow from the spec, or that would cut operator and gateway off from the engine."""

OWNED_SHORT_ARGS: Final = (
    "-dp",
    "-dpb",
    "-dpe",
    "-dph",
    "-dpl",
    "-dpm",
    "-dpn",
    "-dpr",
    "-n",
    "-pp",
    "-r",
    "-tp",
)
"""Short forms of owned arguments."""


def child_labels(name: str) -> dict[str, str]:
    """Return the labels of every child and pod of the resource `name`."""
    return {
        "app.kubernetes.io/name": "structuredllm-engine",
        "app.kubernetes.io/instance": name,
        COMPONENT_LABEL: COMPONENT_ENGINE,
        "app.kubernetes.io/part-of": "structuredllm",
        MANAGED_BY_LABEL: MANAGED_BY,
        NAME_LABEL: name,
    }


def selector_labels(name: str) -> dict[str, str]:
    """Return the immutable subset of labels that selects the pods of the resource `name`."""
    return {NAME_LABEL: name, COMPONENT_LABEL: COMPONENT_ENGINE}


def pod_selector_string(name: str) -> str:
    """Return the label selector of all pods of the resource `name`, the workers of groups too."""
    return f"{POD_COMPONENTS},{NAME_LABEL}={name}"


def download_selector(name: str) -> str:
    """Return the label selector of Jobs and pods that fetch the model of the resource `name`."""
    return f"{COMPONENT_LABEL}={COMPONENT_DOWNLOAD},{NAME_LABEL}={name}"


def selector_string(name: str) -> str:
    """Return `selector_labels` as a label selector string, as the scale subresource wants it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector_labels(name).items()))
