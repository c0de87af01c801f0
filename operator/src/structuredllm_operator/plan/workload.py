"""Builds the engine's Deployment. Pure and deterministic: the same spec gives the same bytes.

The template hash covers the pod template only, so neither a new operator nor a change of replicas, strategy
or gate restarts an engine. Change the rendered template only on purpose: it rolls every engine of every user.
"""

import hashlib
import json
from typing import Any, Final

from structuredllm_operator.api.labels import (
    ENGINE_CONTAINER,
    GATE_CONDITION,
    TEMPLATE_HASH_ANNOTATION,
    child_labels,
    selector_labels,
)
from structuredllm_operator.api.names import child_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.engine_command import build_args, build_command, build_env, build_ports
from structuredllm_operator.plan.model_source import model_storage
from structuredllm_operator.plan.observed import Manifest
from structuredllm_operator.plan.parallelism import build_resources
from structuredllm_operator.plan.placement import place

PRE_STOP_SECONDS: Final = 5
"""Pause before SIGTERM, so that gateways have seen the pod end and send nothing new."""

GRACE_SECONDS: Final = 15
"""Added to the drain time for the pause and the engine's own shutdown."""

STARTUP_PERIOD_SECONDS: Final = 2
STARTUP_FAILURES: Final = 900
"""Startup may take 30 minutes: large weights over a network."""

PROGRESS_DEADLINE_SECONDS: Final = 3600
"""A rollout waits for model loading and the gate; Kubernetes' default of 10 minutes would cry wolf."""


def build_deployment(spec: StructuredLLMSpec, name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return the Deployment of the resource `name`; `owner` is its owner reference.

    Raises:
        SpecError: the resources contradict the parallelism.
    """
    template = build_pod_template(spec, name)
    template["metadata"]["annotations"] = {TEMPLATE_HASH_ANNOTATION: template_hash(template)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": child_name(name),
            "namespace": namespace,
            "labels": child_labels(name),
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": selector_labels(name)},
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "revisionHistoryLimit": 3,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": spec.rollout_strategy.max_surge,
                    "maxUnavailable": spec.rollout_strategy.max_unavailable,
                },
            },
            "template": template,
        },
    }


def template_hash(template: Manifest) -> str:
    """Return the revision of a pod template: 10 hex digits over its canonical JSON."""
    canonical = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def build_pod_template(spec: StructuredLLMSpec, name: str) -> Manifest:
    """Return the pod template without its hash annotation."""
    volumes, mounts = _storage(spec, name)
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy.value,
        "command": build_command(spec),
        "args": build_args(spec, name),
        "env": build_env(spec),
        "ports": build_ports(spec),
        "resources": build_resources(spec),
        "startupProbe": _probe(STARTUP_PERIOD_SECONDS, STARTUP_FAILURES, timeout=5),
        "readinessProbe": _probe(5, 3, timeout=5),
        "livenessProbe": _probe(10, 6, timeout=10),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        # The engine's own last words reach the pod's status, and from there ours.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        "serviceAccountName": child_name(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.shutdown.drain_seconds + GRACE_SECONDS,
        "readinessGates": [{"conditionType": GATE_CONDITION}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }
    if spec.node_selector:
        pod["nodeSelector"] = dict(sorted(spec.node_selector.items()))
    if spec.tolerations:
        pod["tolerations"] = [
            toleration.model_dump(mode="json", by_alias=True, exclude_none=True)
            for toleration in spec.tolerations
        ]
    template: Manifest = {"metadata": {"labels": child_labels(name)}, "spec": pod}
    place(spec, name, template)
    return template


def _storage(spec: StructuredLLMSpec, name: str) -> tuple[list[Manifest], list[Manifest]]:
    # Workers of one pod exchange tensors through shared memory; the container default of 64 MiB is too small.
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 (a mount, not a temporary file)
    more_volumes, more_mounts = model_storage(spec, name)
    return volumes + more_volumes, mounts + more_mounts


def _probe(period: int, failures: int, *, timeout: int) -> Manifest:
    return {
        "httpGet": {"path": "/health", "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
