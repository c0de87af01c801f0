"""All kopf handlers, as thin as can be: every event of the resource or of a child puts its key on the queue.

Only `on.event` handlers are used. kopf's create/update/timer handlers would write annotations and finalizers
on the resource, and decide by differences between events; ours is level-triggered and needs neither (docs of
kopf,
"reconciliation"). The resync timer is the work queue's.
"""

from collections.abc import Callable
from typing import Any

import kopf

from structuredllm_operator.api.labels import (
    COMPONENT_ENGINE,
    COMPONENT_LABEL,
    GROUP,
    NAME_LABEL,
    PLURAL,
    POD_COMPONENTS,
    VERSION,
)
from structuredllm_operator.kube.login import connection_info

Enqueue = Callable[[tuple[str, str]], None]


def build_registry(enqueue: Enqueue, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Return the handlers, bound to one queue and one cluster."""
    registry = kopf.OperatorRegistry()
    engine = {COMPONENT_LABEL: COMPONENT_ENGINE}

    def _enqueue(namespace: str | None, name: str | None) -> None:
        if namespace and name:
            enqueue((namespace, name))

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(kubeconfig)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def resource_event(namespace: str | None, name: str, **_: Any) -> None:
        _enqueue(namespace, name)

    @kopf.on.event("apps", "v1", "deployments", labels=engine, registry=registry)
    async def deployment_event(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        _enqueue(namespace, labels.get(NAME_LABEL))

    # Workers of groups, too: that is all that is heard of a LeaderWorkerSet, whose CRD may not be there to
    # watch.
    @kopf.on.event("", "v1", "pods", labels={NAME_LABEL: kopf.PRESENT}, registry=registry)
    async def pod_event(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        _enqueue(namespace, labels.get(NAME_LABEL))

    return registry


def build_settings(request_timeout_seconds: float) -> kopf.OperatorSettings:
    """Return kopf's own settings: bounded watches, nothing written to the cluster, no cluster-wide scans."""
    settings = kopf.OperatorSettings()
    # Should a handler that persists ever be added, its notes carry our prefix and stay out of the status.
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    # Without it kopf watches all CRDs and namespaces, which would need rights over the whole cluster.
    settings.scanning.disabled = True
    settings.networking.request_timeout = request_timeout_seconds
    settings.networking.connect_timeout = min(10.0, request_timeout_seconds)
    # The server ends a watch before the client gives up, so a silent connection is noticed within the latter.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    selector = f"{COMPONENT_LABEL}={COMPONENT_ENGINE},{NAME_LABEL}"
    settings.watching.label_selectors["apps", "v1", "deployments"] = selector
    settings.watching.label_selectors["", "v1", "pods"] = f"{POD_COMPONENTS},{NAME_LABEL}"
    return settings
