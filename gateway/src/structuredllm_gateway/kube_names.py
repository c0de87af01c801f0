"""The names in the Kubernetes API that the gateway reads.

Owns constants only and must not import anything. They are the operator's contract (its api package defines
them); the gateway repeats the few that it needs because the two distributions do not import each other.
"""

GROUP = "structuredllm.io"
VERSION = "v1alpha1"
PLURAL = "structuredllms"

LABEL_NAME = "structuredllm.io/name"
LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT_ENGINE = "engine"
POD_SELECTOR = f"{LABEL_COMPONENT}={COMPONENT_ENGINE},{LABEL_NAME}"

GATE_CONDITION = "structuredllm.io/StructuredReady"
ENGINE_CONTAINER = "engine"
ENGINE_PORT_NAME = "http"
ENGINE_PORT = 8000
