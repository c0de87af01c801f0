"""Builds the engine's PodDisruptionBudget. Pure."""

from structuredllm_operator.api.labels import (
    COMPONENT_ENGINE,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    NAME_LABEL,
    child_labels,
    selector_labels,
)
from structuredllm_operator.api.names import child_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import Manifest


def build_pdb(spec: StructuredLLMSpec, name: str, namespace: str, owner: Manifest) -> Manifest | None:
    """Return the budget, or None below two replicas: there it would block every node drain."""
    if spec.replicas < 2:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": child_name(name),
            "namespace": namespace,
            "labels": child_labels(name),
            "ownerReferences": [owner],
        },
        "spec": {
            "maxUnavailable": spec.disruption.max_unavailable,
            "selector": _selector(spec, name),
            # A pod that never became healthy must not block a drain (Kubernetes 1.27+).
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _selector(spec: StructuredLLMSpec, name: str) -> Manifest:
    """Select all pods of groups: one that is evicted takes its group with it, so the others must wait."""
    if spec.multi_node.node_count == 1:
        return {"matchLabels": selector_labels(name)}
    components = {"key": COMPONENT_LABEL, "operator": "In", "values": [COMPONENT_ENGINE, COMPONENT_WORKER]}
    return {"matchLabels": {NAME_LABEL: name}, "matchExpressions": [components]}
