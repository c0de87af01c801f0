"""What `status` prints: which programs run, whether the node is Ready, how many pods run.

Owns that text. Imports processes, settings and cluster's kubectl.
"""

import json

from tools.cluster import processes
from tools.cluster.cluster import kubectl
from tools.cluster.errors import ClusterError
from tools.cluster.settings import Settings

COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
)


def describe(settings: Settings) -> tuple[bool, str]:
    """Return whether the cluster works, and the lines that say so.

    A cluster works when each program runs and the node is Ready.
    """
    places = settings.places
    lines, works = [], True
    for name in COMPONENTS:
        identity = processes.running(places.pidfile(name))
        works = works and identity is not None
        state = f"running, pid {identity.pid}" if identity else "not running"
        lines.append(f"{name:<24} {state:<22} log {places.log(name)}")
    try:
        node = json.loads(
            kubectl(places, "get", "node", settings.node_name, "-o", "json", timeout_seconds=15)
        )
        pods = json.loads(kubectl(places, "get", "pods", "-A", "-o", "json", timeout_seconds=15))["items"]
    except ClusterError as error:
        lines.append(f"API server               {error.cause}")
        return False, "\n".join(lines)
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    running = sum(pod["status"].get("phase") == "Running" for pod in pods)
    lines += [
        f"{'node ' + settings.node_name:<24} {'Ready' if ready else 'not Ready'}, {settings.node_ip}",
        f"{'pods':<24} {running} of {len(pods)} running, addresses {settings.cluster_cidr}",
        f"{'kubeconfig':<24} {places.kubeconfig}",
    ]
    return works and ready, "\n".join(lines)
