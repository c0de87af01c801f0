"""What runs inside the cluster from the start: CoreDNS and, if wanted, the LeaderWorkerSet controller.

Owns their manifests and chart values. Sources: CoreDNS's `kubernetes` plugin (the access it needs), the chart
in the LeaderWorkerSet module's own folder. Imports nothing that starts programs.
"""

from pathlib import Path
from typing import Any

LWS_NAMESPACE = "lws-system"
LWS_MODULE = "sigs.k8s.io/lws"
LWS_CHART = Path("charts") / "lws"
LWS_DEPLOYMENT = "lws-controller-manager"
LWS_WEBHOOK = "lws-webhook-service"
NON_ROOT = "65532:65532"
Manifest = dict[str, Any]


def corefile(forward: bool) -> str:
    """Return CoreDNS's configuration.

    Args:
        forward: Whether names outside the cluster go to the node's servers; False where it has none.
    """
    outside = "    forward . /etc/resolv.conf {\n        max_concurrent 1000\n    }\n" if forward else ""
    return f""".:53 {{
    errors
    health {{
        lameduck 2s
    }}
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
{outside}    cache 5
    loop
    reload
}}
"""


def coredns_manifests(image: str, dns_address: str, *, forward: bool) -> list[Manifest]:
    """Return the manifests of CoreDNS at the cluster's DNS address.

    Answers are cached for 5 s only: tests and LeaderWorkerSet groups look for pods that just started.
    """
    labels = {"k8s-app": "kube-dns"}
    meta: Manifest = {"name": "coredns", "namespace": "kube-system"}
    container: Manifest = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "initialDelaySeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
    }
    pod: Manifest = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        # The node's own name servers, not the cluster's: it would forward to itself.
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "structuredllm:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "structuredllm:coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "structuredllm:coredns",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": corefile(forward)}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": dns_address,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"},
                ],
            },
        },
    ]


def lws_values(image: str) -> Manifest:
    """Return the chart values for the LeaderWorkerSet controller on one small node."""
    repository, _, tag = image.rpartition(":")
    return {
        "image": {"manager": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}},
        "replicaCount": 1,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }


def helm_argv(helm: Path, kubeconfig: Path, chart: Path, values: Path) -> list[str]:
    """Return the command that installs or updates the LeaderWorkerSet chart."""
    return [
        *(str(helm), "upgrade", "--install", "lws", str(chart), "--kubeconfig", str(kubeconfig)),
        *("--namespace", LWS_NAMESPACE, "--create-namespace", "--values", str(values)),
        *("--timeout", "120s"),
    ]
