"""Endpoints from a cluster: StructuredLLM objects and engine pods, watched.

Owns the Kubernetes client and the assembly of snapshots; the rules are in `kube_state`, the watch loop in
`kube_watch`. While the API server is away the last view stays in use and is marked stale: an engine that
answers is better than none, and what it cannot reach the relay's own tries find out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import structlog
from kubernetes.aio import client as kube_client
from kubernetes.aio import config as kube_config

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.kube_names import GROUP, PLURAL, POD_SELECTOR, VERSION
from structuredllm_gateway.upstream.endpoints import Endpoint, Snapshot, ValidationMode
from structuredllm_gateway.upstream.kube_state import build_pools
from structuredllm_gateway.upstream.kube_watch import (
    WATCH_OPEN,
    KubeApi,
    KubeApiError,
    Manifest,
    Reflector,
)

# The server ends a watch after the first; the client gives up on a silent connection after the second.
_WATCH_SECONDS = 240
_WATCH_LIMIT_SECONDS = 270
_LIST_LIMIT_SECONDS = 30
_MAX_EVENT_BYTES = 8 * 1024 * 1024


class ClusterKind:
    """List and watch of one collection path through the official client (a `KubeApi`)."""

    def __init__(self, api: Any, path: str, label_selector: str = "") -> None:
        """Take an `ApiClient` of `kubernetes.aio` and a collection's path."""
        self._api = api
        self._path = path
        self._selector = {"labelSelector": label_selector} if label_selector else {}

    async def list(self) -> tuple[list[Manifest], str]:
        """See `KubeApi.list`."""
        response = await self._get({}, _LIST_LIMIT_SECONDS)
        try:
            whole = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise KubeApiError(f"list of {self._path} failed: {error!r}") from error
        finally:
            response.release()
        return whole["items"], whole["metadata"]["resourceVersion"]

    async def watch(self, resource_version: str) -> AsyncIterator[Manifest]:
        """See `KubeApi.watch`. Lines are cut here, as one object may outgrow a stream reader's line limit."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        response = await self._get(query, _WATCH_LIMIT_SECONDS)
        held = b""
        try:
            yield WATCH_OPEN
            async for chunk in response.content.iter_any():
                *lines, held = (held + chunk).split(b"\n")
                if len(held) > _MAX_EVENT_BYTES:
                    raise KubeApiError(f"an event of {self._path} is longer than {_MAX_EVENT_BYTES} bytes")
                for line in lines:
                    if line.strip():
                        yield orjson.loads(line)
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise KubeApiError(f"watch of {self._path} broke: {error!r}") from error
        finally:
            response.close()

    async def _get(self, query: Mapping[str, str], limit_seconds: float) -> aiohttp.ClientResponse:
        try:
            method, url, headers, body, posted = await self._api.param_serialize(
                method="GET",
                resource_path=self._path,
                query_params=[*self._selector.items(), *query.items()],
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            wrapped = await self._api.call_api(
                method, url, headers, body, posted, _request_timeout=limit_seconds
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise KubeApiError(f"the API server cannot be reached: {error!r}") from error
        response: aiohttp.ClientResponse = wrapped.response
        if response.status != 200:
            try:
                text = (await response.content.read(2000)).decode("utf-8", "replace")
            except (aiohttp.ClientError, TimeoutError):
                text = ""
            finally:
                response.close()
            raise KubeApiError(f"GET {self._path}: HTTP {response.status}: {text}", response.status)
        return response


class KubernetesEndpoints:
    """An `EndpointSource` over two reflectors."""

    def __init__(
        self,
        resources: KubeApi,
        pods: KubeApi,
        *,
        default_validation: ValidationMode,
        log: structlog.typing.FilteringBoundLogger,
        rng: random.Random,
        close: Callable[[], Any] | None = None,
    ) -> None:
        """Take the two kinds; `close` is awaited when `run` ends."""
        self._default_validation = default_validation
        self._close = close
        self._resources = Reflector(PLURAL, resources, self._rebuild, log=log, rng=rng)
        self._pods = Reflector("pods", pods, self._rebuild, log=log, rng=rng)
        self._snapshot = Snapshot()
        self._listeners: list[Callable[[], None]] = []

    def snapshot(self) -> Snapshot:
        """Return the view as of the last event."""
        return self._snapshot

    def subscribe(self, changed: Callable[[], None]) -> None:
        """See `EndpointSource.subscribe`."""
        self._listeners.append(changed)

    def suspect(self, endpoint: Endpoint) -> None:
        """Nothing to do: the kubelet and the operator look at pods, and the watch says what they found."""

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resources.run())
                group.create_task(self._pods.run())
        finally:
            if self._close is not None:
                await self._close()

    def _rebuild(self) -> None:
        self._snapshot = Snapshot(
            pools=build_pools(
                self._resources.objects.values(), self._pods.objects.values(), self._default_validation
            ),
            synced=self._resources.synced and self._pods.synced,
            stale=self._resources.stale or self._pods.stale,
        )
        for listener in self._listeners:
            listener()


async def connect(
    *,
    kubeconfig: Path | None,
    namespace: str,
    default_validation: ValidationMode,
    log: structlog.typing.FilteringBoundLogger,
    rng: random.Random,
) -> KubernetesEndpoints:
    """Return a source over a real cluster; nothing is asked before `run`.

    Args:
        kubeconfig: file to use; None = the pod's own service account.
        namespace: the only namespace looked at; "" = all.
        default_validation: mode of a resource that does not state one.
        log: where discovery reports that it is stale or has recovered.
        rng: jitter of the backoff.

    Raises:
        SettingsError: the configuration cannot be loaded.
    """
    configuration = kube_client.Configuration()
    try:
        if kubeconfig is None:
            kube_config.load_incluster_config(client_configuration=configuration)
        else:
            await kube_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    except (kube_config.ConfigException, OSError) as error:
        raise SettingsError(
            f"cannot load the Kubernetes configuration ({error}); run inside a pod with a service account, "
            "set discovery.kubeconfig, or set discovery.mode to static"
        ) from error
    api = kube_client.ApiClient(configuration)
    scope = f"namespaces/{namespace}/" if namespace else ""
    return KubernetesEndpoints(
        ClusterKind(api, f"/apis/{GROUP}/{VERSION}/{scope}{PLURAL}"),
        ClusterKind(api, f"/api/v1/{scope}pods", POD_SELECTOR),
        default_validation=default_validation,
        log=log,
        rng=rng,
        close=api.close,
    )
