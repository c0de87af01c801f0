"""Builds the engine's ServiceAccount. Pure."""

from structuredllm_operator.api.labels import child_labels
from structuredllm_operator.api.names import child_name
from structuredllm_operator.plan.observed import Manifest


def build_service_account(name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return an account without rights; its token is never mounted. Users bind pull secrets to it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": child_name(name),
            "namespace": namespace,
            "labels": child_labels(name),
            "ownerReferences": [owner],
        },
        "automountServiceAccountToken": False,
    }
