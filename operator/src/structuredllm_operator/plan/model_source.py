"""Where an engine finds its model: path, volumes and mounts, from the spec alone. Pure.

hf://org/repo              the hub's name; every pod downloads for itself
hf://org/repo with cache   a folder on the cache claim, mounted read-only
pvc://claim/path           a folder on a claim, mounted read-only
oci://registry/image:tag   an image volume
file:///dir                a folder inside the engine's image
"""

from typing import Final
from urllib.parse import quote

from structuredllm_operator.api.names import model_claim_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import Manifest

PVC_MOUNT: Final = "/models/pvc"
OCI_MOUNT: Final = "/models/oci"
MODEL_CACHE_MOUNT: Final = "/models/cache"
CACHE_MOUNT: Final = "/var/cache/structuredllm"

DEFAULT_REVISION: Final = "main"

_HF: Final = "hf://"
_PVC: Final = "pvc://"
_OCI: Final = "oci://"
_FILE: Final = "file://"


def model_path(spec: StructuredLLMSpec) -> str:
    """Return what the engine gets as the model: a hub repository or a directory in the container."""
    uri = spec.model.uri
    if is_cached(spec):
        return f"{MODEL_CACHE_MOUNT}/{cache_folder(spec)}"
    if uri.startswith(_HF):
        return uri.removeprefix(_HF)
    if uri.startswith(_PVC):
        _, _, path = uri.removeprefix(_PVC).partition("/")
        return f"{PVC_MOUNT}/{path}".rstrip("/")
    if uri.startswith(_OCI):
        return f"{OCI_MOUNT}/{spec.model.path}" if spec.model.path else OCI_MOUNT
    return uri.removeprefix(_FILE)


def repository(spec: StructuredLLMSpec) -> str:
    """Return `org/repo` of an hf:// model."""
    return spec.model.uri.removeprefix(_HF)


def revision(spec: StructuredLLMSpec) -> str:
    """Return the revision on the hub."""
    return spec.model.revision or DEFAULT_REVISION


def is_hub_model(spec: StructuredLLMSpec) -> bool:
    """Whether the model comes from the hub, in whatever way."""
    return spec.model.uri.startswith(_HF)


def is_cached(spec: StructuredLLMSpec) -> bool:
    """Whether a Job keeps the model on a claim."""
    return is_hub_model(spec) and spec.model.cache is not None


def needs_hub(spec: StructuredLLMSpec) -> bool:
    """Whether engine pods themselves fetch from the hub."""
    return is_hub_model(spec) and not is_cached(spec)


def cache_folder(spec: StructuredLLMSpec) -> str:
    """Return the model's folder on the cache claim: one component, the same for all who share the claim."""
    return f"{repository(spec).replace('/', '--')}@{quote(revision(spec), safe='')}"


def claim_name(spec: StructuredLLMSpec, name: str) -> str | None:
    """Return the claim that holds the model of the resource `name`, None when there is none."""
    if spec.model.uri.startswith(_PVC):
        return spec.model.uri.removeprefix(_PVC).partition("/")[0]
    if spec.model.cache is None or not is_hub_model(spec):
        return None
    return spec.model.cache.claim_name or model_claim_name(name)


def image_reference(spec: StructuredLLMSpec) -> str | None:
    """Return the image that is mounted as the model, None when there is none."""
    return spec.model.uri.removeprefix(_OCI) if spec.model.uri.startswith(_OCI) else None


def model_storage(spec: StructuredLLMSpec, name: str) -> tuple[list[Manifest], list[Manifest]]:
    """Return the (volumes, mounts) of an engine pod that have to do with its model."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if is_hub_model(spec):
        volumes.append({"name": "cache", "emptyDir": {}})
        mounts.append({"name": "cache", "mountPath": CACHE_MOUNT})
    claim = claim_name(spec, name)
    if claim is not None and is_cached(spec):
        # Read-only in the container only: a source that is read-only cannot be attached beside a download.
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "model", "mountPath": MODEL_CACHE_MOUNT, "readOnly": True})
    elif claim is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": "model", "mountPath": PVC_MOUNT, "readOnly": True})
    image = image_reference(spec)
    if image is not None:
        source = {"reference": image, "pullPolicy": "IfNotPresent"}
        volumes.append({"name": "model", "image": source})
        mounts.append({"name": "model", "mountPath": OCI_MOUNT, "readOnly": True})
    return volumes, mounts


def hub_env(spec: StructuredLLMSpec) -> dict[str, Manifest]:
    """Return the engine's environment that has to do with the hub, by name.

    The token goes only where it is needed: not into engines whose model a Job has fetched.
    """
    env: dict[str, Manifest] = {}
    if is_hub_model(spec):
        env["HF_HOME"] = {"value": CACHE_MOUNT}
    if spec.model.offline or is_cached(spec):
        env["HF_HUB_OFFLINE"] = {"value": "1"}
        env["TRANSFORMERS_OFFLINE"] = {"value": "1"}
    if spec.model.secret_ref is not None and needs_hub(spec):
        env["HF_TOKEN"] = token_source(spec)
    return env


def token_source(spec: StructuredLLMSpec) -> Manifest:
    """Return the wire form of HF_TOKEN's source; only with a secretRef."""
    reference = spec.model.secret_ref
    if reference is None:
        return {"value": ""}
    return {"valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}
