"""Builds the claim of a model cache and the Job that fills it. Pure and deterministic.

The Job never gives up by itself: its one pod restarts in place with the kubelet's back-off (up to 5 minutes),
so that a corrected Secret or an enlarged claim heals it without anyone's doing. It is applied once and then
left alone: a Job's pod template cannot be changed, and a new operator must not touch what runs.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from structuredllm_operator.api.labels import (
    COMPONENT_DOWNLOAD,
    COMPONENT_LABEL,
    TELEMETRY_PORT,
    child_labels,
)
from structuredllm_operator.api.model_spec import AccessMode
from structuredllm_operator.api.names import child_name, model_claim_name, model_job_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.engine_args import env_value
from structuredllm_operator.plan.model_source import (
    MODEL_CACHE_MOUNT,
    cache_folder,
    claim_name,
    repository,
    revision,
    token_source,
)
from structuredllm_operator.plan.observed import Manifest

DOWNLOAD_CONTAINER: Final = "download"
KEEP_SECONDS: Final = 600
"""A finished Job goes after this time; the resource's status remembers."""

USER: Final = 65532
"""User and group of the operator's image."""

HANDED_ON: Final = (
    "ALL_PROXY",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Variables of spec.engine.env that a download needs too."""


@dataclass(frozen=True)
class Downloader:
    """The image that holds the downloader: the operator's own."""

    image: str
    pull_policy: str = "IfNotPresent"


def content_key(spec: StructuredLLMSpec, name: str) -> str:
    """Return 10 hex digits that stand for what is wanted on which claim."""
    return _digest({"uri": spec.model.uri, "revision": revision(spec), "claim": claim_name(spec, name)})


def job_name(spec: StructuredLLMSpec, name: str) -> str:
    """Return the Job's name: another content, token or way to the hub makes another Job."""
    wanted = {
        "content": content_key(spec, name),
        "env": _env(spec),
        "offline": spec.model.offline,
        "nodeSelector": spec.node_selector,
        "tolerations": _tolerations(spec),
    }
    return model_job_name(name, _digest(wanted))


def build_claim(spec: StructuredLLMSpec, name: str, namespace: str, owner: Manifest) -> Manifest | None:
    """Return the claim to make, None when an existing one is used."""
    cache = spec.model.cache
    if cache is None or cache.size is None:
        return None
    body: dict[str, Any] = {
        "accessModes": [(cache.access_mode or AccessMode.READ_WRITE_MANY).value],
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        body["storageClassName"] = cache.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": model_claim_name(name),
            "namespace": namespace,
            "labels": _labels(name),
            "ownerReferences": [owner],
        },
        "spec": body,
    }


def build_job(
    spec: StructuredLLMSpec, name: str, namespace: str, owner: Manifest, downloader: Downloader
) -> Manifest:
    """Return the Job that brings the model onto the claim."""
    template: dict[str, Any] = {"metadata": {"labels": _labels(name)}, "spec": _pod(spec, name, downloader)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(spec, name),
            "namespace": namespace,
            "labels": _labels(name),
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": 2**31 - 1,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "template": template,
        },
    }


def _pod(spec: StructuredLLMSpec, name: str, downloader: Downloader) -> Manifest:
    args = [
        f"--repo={repository(spec)}",
        f"--revision={revision(spec)}",
        f"--directory={MODEL_CACHE_MOUNT}/{cache_folder(spec)}",
        f"--port={TELEMETRY_PORT}",
        "--termination-log=/dev/termination-log",
    ]
    if spec.model.offline:
        args.append("--offline")
    container: dict[str, Any] = {
        "name": DOWNLOAD_CONTAINER,
        "image": downloader.image,
        "imagePullPolicy": downloader.pull_policy,
        "command": ["python", "-m", "structuredllm_operator.download"],
        "args": args,
        "env": [{"name": key, **value} for key, value in _env(spec).items()],
        "ports": [{"name": "progress", "containerPort": TELEMETRY_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "model", "mountPath": MODEL_CACHE_MOUNT}],
    }
    pod: dict[str, Any] = {
        "serviceAccountName": child_name(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # A claim with many models would take minutes otherwise, at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": claim_name(spec, name) or ""}}],
    }
    # Where the engines may run: the first pod on a claim decides in which zone its volume is made.
    if spec.node_selector:
        pod["nodeSelector"] = dict(sorted(spec.node_selector.items()))
    if spec.tolerations:
        pod["tolerations"] = _tolerations(spec)
    return pod


def _env(spec: StructuredLLMSpec) -> dict[str, Manifest]:
    env: dict[str, Manifest] = {}
    if spec.model.secret_ref is not None:
        env["HF_TOKEN"] = token_source(spec)
    for variable in spec.engine.env:
        if variable.name in HANDED_ON:
            env[variable.name] = env_value(variable)
    return dict(sorted(env.items()))


def _tolerations(spec: StructuredLLMSpec) -> list[Manifest]:
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in spec.tolerations]


def _labels(name: str) -> dict[str, str]:
    # No engine's: neither its Service nor its monitors may take the pod for one.
    own = {"app.kubernetes.io/name": "structuredllm-model-download", COMPONENT_LABEL: COMPONENT_DOWNLOAD}
    return {**child_labels(name), **own}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
