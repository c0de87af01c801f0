"""Builds the engine's Service. Pure."""

from structuredllm_operator.api.labels import HTTP_PORT, TELEMETRY_PORT, child_labels, selector_labels
from structuredllm_operator.api.names import child_name
from structuredllm_operator.plan.observed import Manifest


def build_service(name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return the Service: only pods that passed the gate are its ready endpoints."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": child_name(name),
            "namespace": namespace,
            "labels": child_labels(name),
            "ownerReferences": [owner],
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector_labels(name),
            "ports": [
                {"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"},
                {"name": "telemetry", "port": TELEMETRY_PORT, "targetPort": "telemetry", "protocol": "TCP"},
            ],
        },
    }
