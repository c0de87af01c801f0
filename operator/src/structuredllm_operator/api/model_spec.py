"""The model's part of spec and status: where it comes from, and where a downloaded copy is kept.

Owns these fields and their CEL rules. Pure, as all of `api`.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from structuredllm_operator.api.base import IntOrString, KeySelector, Model, ObjectName, rule, rules

_URI: Final = (
    r"^(hf://[^/\s]+/[^/\s]+|pvc://[a-z0-9][-a-z0-9.]*(/\S*)?|file:///\S+"
    r"|oci://[a-z0-9][-a-z0-9.]*(:[0-9]+)?/[^/\s]\S*)$"
)


class AccessMode(StrEnum):
    """How a claim may be mounted."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


class ModelCacheSpec(Model):
    """A claim that holds the downloaded model: one that exists, or one made for this resource."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.claimName) != has(self.size)",
                "spec.model.cache needs either claimName (a claim that exists) or size (a claim is made):"
                " give exactly one",
            ),
            rule(
                "!has(self.size) || isQuantity(string(self.size))",
                "spec.model.cache.size must be a quantity: write it as 200Gi",
            ),
            rule(
                "!has(self.size) || !has(oldSelf.size) || !isQuantity(string(self.size))"
                " || !isQuantity(string(oldSelf.size))"
                " || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
                "spec.model.cache.size may only grow, a claim cannot shrink: set the old size or more",
            ),
            rule(
                "has(self.size) || (!has(self.storageClassName) && !has(self.accessMode))",
                "spec.model.cache.storageClassName and accessMode are for a claim that is made: remove"
                " them, or give size instead of claimName",
            ),
            rule(
                "!has(self.size) || !has(oldSelf.size) ||"
                " (has(self.storageClassName) == has(oldSelf.storageClassName)"
                " && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
                " && has(self.accessMode) == has(oldSelf.accessMode)"
                " && (!has(self.accessMode) || self.accessMode == oldSelf.accessMode))",
                "spec.model.cache.storageClassName and accessMode of a claim cannot be changed: make the"
                " claim yourself and give claimName",
            ),
        )
    )

    claim_name: ObjectName | None = None
    """An existing PersistentVolumeClaim, writable for group 65532; resources may share it. It is never
    changed or deleted. Default: none. Example: `models`."""
    size: IntOrString | None = None
    """Size of a PersistentVolumeClaim `<name>-model` to make; it is deleted with the resource. May grow where
    the storage class allows it. Default: none. Example: `200Gi`."""
    storage_class_name: ObjectName | None = None
    """Storage class of the claim that is made. Default: the cluster's. Example: `nfs`."""
    access_mode: AccessMode | None = None
    """Access mode of the claim that is made: ReadWriteMany, or ReadWriteOnce when all pods run on one node.
    Default: ReadWriteMany."""


class ModelSpec(Model):
    """Which model the engine serves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "spec.model.revision works only with an hf:// uri: remove it, or use spec.model.uri hf://org/repo",
            ),
            rule(
                "!has(self.secretRef) || self.uri.startsWith('hf://')",
                "spec.model.secretRef works only with an hf:// uri: remove it, or use spec.model.uri hf://org/repo",
            ),
            rule(
                "!has(self.cache) || self.uri.startsWith('hf://')",
                "spec.model.cache works only with an hf:// uri: remove it; the others need no download",
            ),
            rule(
                "!has(self.path) || self.uri.startsWith('oci://')",
                "spec.model.path works only with an oci:// uri: remove it, or put the path into"
                " spec.model.uri",
            ),
            rule(
                "!self.offline || !self.uri.startsWith('hf://') || has(self.cache)",
                "spec.model.offline with an hf:// uri needs spec.model.cache, which holds the model: add it,"
                " or use pvc://, oci:// or file://",
            ),
            rule(
                "!self.uri.contains('/../') && !self.uri.endsWith('/..')",
                "spec.model.uri must not contain '..': give the path without it",
            ),
        )
    )

    uri: Annotated[
        str,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                rule(
                    f"self.matches(r'{_URI}')",
                    "spec.model.uri must be hf://org/repo, pvc://claim/path, oci://registry/image or"
                    " file:///directory (in the engine's image)",
                )
            ),
        ),
    ]
    """Where the model is. Required. `hf://org/repo` is fetched from the Hugging Face hub, `pvc://claim/path`
    is a directory on a claim (mounted read-only), `oci://registry/image:tag` is an image whose files are the
    model (mounted as an image volume; Kubernetes 1.35, or the feature gate ImageVolume), `file:///dir` is a
    directory inside the engine image. Example: `hf://Qwen/Qwen3-8B`."""
    revision: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, json_schema_extra={"nullable": True}
    )
    """Branch, tag or commit on the hub; only with `hf://`. A branch is looked up once per cache: give a
    commit to be exact. Default: the repository's main branch. Example: `9c3f1e2`."""
    path: (
        Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^([^./\s][^/\s]*/)*[^./\s][^/\s]*$")]
        | None
    ) = None
    """Directory of the model inside the image; only with `oci://`. Default: the image's root.
    Example: `models`."""
    name: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")] | None
    ) = None
    """Model name in requests. Default: the resource's name. Example: `qwen3-8b`."""
    secret_ref: KeySelector | None = None
    """Secret key with the hub token; only with `hf://`. Default: none.
    Example: `{name: hf-token, key: token}`."""
    cache: ModelCacheSpec | None = None
    """Keep the model on a claim: a Job downloads it once, the pods start from there and never ask the hub.
    Only with `hf://`. Default: none (every pod downloads for itself)."""
    offline: bool = False
    """Nothing of this resource may reach the hub: the engine is told so, and a cache must hold the model
    already. Default: false."""


class ModelStatus(Model):
    """The copy of the model on the cache claim."""

    commit: str | None = None
    """Commit on the hub; empty when it is not known."""
    claim_name: str | None = None
    """The claim."""
    claim_uid: str | None = None
    """Its uid: a claim that replaced it does not hold the model."""
    key: str | None = None
    """Hash of source, revision and claim that the copy is for."""
    ready: bool | None = None
    """Whether the copy is complete and its checksums were right."""
    percent: int | None = None
    """Downloaded so far, in percent of the bytes."""
    size_bytes: int | None = None
    """Size of the model's files; missing when it is not known."""
