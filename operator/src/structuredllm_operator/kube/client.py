"""A small port to the Kubernetes API over the official asyncio client: paths known ahead, no discovery.

Owns requests, time-outs and the mapping of API errors to errors.py. Bodies are plain dicts; what they mean is
decided elsewhere. Every call is bounded by the time-out given at construction.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from structuredllm_operator.api.labels import FIELD_MANAGER, GROUP, PLURAL, VERSION
from structuredllm_operator.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    TransientError,
)
from structuredllm_operator.kube.login import load_configuration

Body = dict[str, Any]

_MERGE_PATCH: Final = "application/merge-patch+json"
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_APPLY_PATCH: Final = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Kind:
    """Where objects of one kind live: `base` is the path before `/namespaces`."""

    kind: str
    base: str
    plural: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource."""
        parts = [self.base, "namespaces", namespace, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


STRUCTURED_LLM: Final = Kind("StructuredLLM", f"/apis/{GROUP}/{VERSION}", PLURAL)
DEPLOYMENT: Final = Kind("Deployment", "/apis/apps/v1", "deployments")
LEADER_WORKER_SET: Final = Kind("LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets")
SERVICE: Final = Kind("Service", "/api/v1", "services")
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "/api/v1", "serviceaccounts")
PDB: Final = Kind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets")
POD: Final = Kind("Pod", "/api/v1", "pods")
EVENT: Final = Kind("Event", "/api/v1", "events")
PVC: Final = Kind("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims")
JOB: Final = Kind("Job", "/apis/batch/v1", "jobs")

CHILD_KINDS: Final = (SERVICE_ACCOUNT, SERVICE, PDB, DEPLOYMENT)
OPTIONAL_CHILD_KINDS: Final = (LEADER_WORKER_SET,)
"""Kinds of children that a cluster may not know."""
KINDS: Final[Mapping[str, Kind]] = {
    kind.kind: kind for kind in (STRUCTURED_LLM, *CHILD_KINDS, *OPTIONAL_CHILD_KINDS, POD, EVENT, PVC, JOB)
}


class KubeClient:
    """Typed-error access to the API server; use as an async context manager."""

    def __init__(self, api: ApiClient, *, timeout_seconds: float = 30.0) -> None:
        self._api = api
        self._dynamic = DynamicClient(api)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    @classmethod
    async def connect(cls, kubeconfig: str | None, *, timeout_seconds: float = 30.0) -> Self:
        """Return a client for the kubeconfig file, or for the pod's own service account when it is None.

        Raises:
            ConfigError: there is no usable access.
        """
        configuration = await load_configuration(kubeconfig)
        return cls(ApiClient(configuration), timeout_seconds=timeout_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """Return the object, or None when it does not exist."""
        try:
            return await self._call("get", kind.path(namespace, name))
        except NotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str, *, label_selector: str) -> "list[Body]":
        """Return the objects that match the selector, as of now (a consistent read)."""
        answer = await self._call(
            "get", kind.path(namespace), query_params=[("labelSelector", label_selector)]
        )
        items: list[Body] = answer.get("items") or []
        return items

    async def apply(self, manifest: Mapping[str, Any], *, subresource: str = "") -> Body:
        """Server-side apply with our field manager; takes over fields that others set."""
        metadata = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)
        return await self._call(
            "patch",
            path,
            body=dict(manifest),
            content_type=_APPLY_PATCH,
            query_params=[("fieldManager", FIELD_MANAGER), ("force", "true"), ("fieldValidation", "Strict")],
        )

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete the object and what it owns; one that is gone already is fine."""
        # Said aloud because the API server's default for a Job is to orphan its pods.
        how = [("propagationPolicy", "Background")]
        try:
            await self._call("delete", kind.path(namespace, name), query_params=how)
        except NotFoundError:
            return

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Body:
        """Create an object."""
        return await self._call(
            "post", kind.path(namespace), body=dict(body), query_params=[("fieldManager", FIELD_MANAGER)]
        )

    async def patch_status(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> Body:
        """Strategic merge patch of a built-in kind's status; list entries are merged by their key."""
        return await self._call(
            "patch",
            kind.path(namespace, name, "status"),
            body=dict(body),
            content_type=_STRATEGIC_PATCH,
            query_params=[("fieldManager", FIELD_MANAGER)],
        )

    async def resource_is_served(self) -> bool:
        """Whether the API server knows our resource, that is, whether the CRD is installed."""
        return await self.serves(STRUCTURED_LLM)

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows a kind, that is, whether its CRD is installed."""
        try:
            answer = await self._call("get", kind.base)
        except NotFoundError:
            return False
        return any(one.get("name") == kind.plural for one in answer.get("resources", []))

    async def _call(self, method: str, path: str, **params: Any) -> Body:
        try:
            response = await self._dynamic.request(
                method, path, serialize=False, _request_timeout=self._timeout, **params
            )
            data: Body = await response.json()
        except ApiException as error:
            raise _classify(method, path, error) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise TransientError(f"{method} {path}: no answer from the API server: {error!r}") from error
        return data


def _classify(method: str, path: str, error: ApiException) -> KubeError:
    status = int(error.status or 0)
    text = f"{method} {path}: {status} {_server_words(error)}"
    if status == 404:
        return NotFoundError(text, status)
    if status == 409:
        return ConflictError(text, status)
    if status in (401, 403):
        return ForbiddenError(text, status)
    if status == 429 or status >= 500 or status == 0:
        return TransientError(text, status)
    return KubeError(text, status)


def _server_words(error: ApiException) -> str:
    body = error.body
    try:
        text = str(json.loads(body)["message"]) if body else str(error.reason)
    except (ValueError, KeyError, TypeError):
        text = str(error.reason)
    return text[:500]
