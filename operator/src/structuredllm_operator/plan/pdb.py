"""Builds the engine's PodDisruptionBudget. Pure."""

from structuredllm_operator.api.labels import child_labels, selector_labels
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
            "selector": {"matchLabels": selector_labels(name)},
            # A pod that never became healthy must not block a drain (Kubernetes 1.27+).
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
