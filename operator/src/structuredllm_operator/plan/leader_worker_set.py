"""Builds the LeaderWorkerSet of an engine that spans several nodes. Pure and deterministic.

One group is one replica: a leader with the front-end and the first pipeline stages, and headless workers
with the following ones, in vLLM's own multi-node mode (vllm/entrypoints/cli/serve.py `run_headless`),
without Ray. The LeaderWorkerSet controller injects index and leader address into every container and
recreates a group as a whole when a pod or container of it restarts. Its Services publish addresses before
pods are ready, as the nodes must meet before any of them is. Each group has a Service of its own (subdomain
policy UniquePerReplica), because the shared one would have the name of the set, which is that of our Service.

Source of the field names: LeaderWorkerSet v0.8, api/leaderworkerset/v1/leaderworkerset_types.go.
"""

import copy
from typing import Any, Final

from structuredllm_operator.api.labels import (
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    TEMPLATE_HASH_ANNOTATION,
    child_labels,
)
from structuredllm_operator.api.names import child_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import Manifest
from structuredllm_operator.plan.workload import PRE_STOP_SECONDS, build_pod_template, template_hash

API_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
KIND: Final = "LeaderWorkerSet"
EXCLUSIVE_ANNOTATION: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"

MASTER_PORT: Final = 29501
"""Where the nodes of an engine meet; vLLM's default, said aloud because the workers' end depends on it."""

LINGER_SECONDS: Final = 5
"""A worker outlives the longest drain of its leader by this time at most."""

# A worker that goes first takes the running requests with it. The leader's rank 0 listens on the master port
# as long as it lives; two refusals in a row mean that it is gone. Ends by itself, whatever happens.
_WAIT_FOR_LEADER: Final = (
    "import os,socket,time\n"
    "leader=(os.environ['LWS_LEADER_ADDRESS'],{port})\n"
    "end,misses=time.monotonic()+{seconds},0\n"
    "while misses<2 and time.monotonic()<end:\n"
    "    try:\n"
    "        socket.create_connection(leader,2).close()\n"
    "        misses=0\n"
    "    except OSError:\n"
    "        misses+=1\n"
    "    time.sleep(1)\n"
)


def is_multi_node(spec: StructuredLLMSpec) -> bool:
    """Whether an engine of this spec spans several nodes."""
    return spec.multi_node.node_count > 1


def build_leader_worker_set(spec: StructuredLLMSpec, name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return the LeaderWorkerSet of the resource `name`; `owner` is its owner reference.

    Raises:
        SpecError: the resources contradict the parallelism.
    """
    leader = build_leader(spec, name)
    worker = build_worker(spec, leader)
    metadata: dict[str, Any] = {
        "name": child_name(name),
        "namespace": namespace,
        "labels": child_labels(name),
        "ownerReferences": [owner],
    }
    size = spec.multi_node.node_count
    exclusive = spec.placement.exclusive_topology_key
    if exclusive is not None:
        metadata["annotations"] = {EXCLUSIVE_ANNOTATION: exclusive}
    revision = template_hash({"leader": leader, "worker": worker, "size": size, "exclusive": exclusive})
    for template in (leader, worker):
        template["metadata"]["annotations"] = {TEMPLATE_HASH_ANNOTATION: revision}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "replicas": spec.replicas,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxSurge": spec.rollout_strategy.max_surge,
                    "maxUnavailable": spec.rollout_strategy.max_unavailable,
                },
            },
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }


def build_leader(spec: StructuredLLMSpec, name: str) -> Manifest:
    """Return the leader's pod template: that of a single-node engine that waits for its other nodes."""
    template = build_pod_template(spec, name)
    container = template["spec"]["containers"][0]
    container["args"] = [*container["args"], *_node_args(spec)]
    if all(variable["name"] != "VLLM_HOST_IP" for variable in container["env"]):
        # A pod has one address that the others reach; vLLM would guess it from the default route.
        source = {"fieldRef": {"fieldPath": "status.podIP"}}
        container["env"].append({"name": "VLLM_HOST_IP", "valueFrom": source})
    return template


def build_worker(spec: StructuredLLMSpec, leader: Manifest) -> Manifest:
    """Return the workers' pod template: the leader's without front-end, ports, probes and gate.

    Nobody can ask a headless node how it is. It ends when its engine ends (patch p030), and the leader's
    health speaks for the whole group.
    """
    template = copy.deepcopy(leader)
    template["metadata"]["labels"][COMPONENT_LABEL] = COMPONENT_WORKER
    pod = template["spec"]
    del pod["readinessGates"]
    # Replicas are spread by their leaders; the workers of one go where there is room for them.
    pod.pop("topologySpreadConstraints", None)
    container = pod["containers"][0]
    container["args"].append("--headless")
    for part in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
        del container[part]
    seconds = PRE_STOP_SECONDS + spec.shutdown.drain_seconds + LINGER_SECONDS
    script = _WAIT_FOR_LEADER.format(port=MASTER_PORT, seconds=seconds)
    container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", script]}}}
    return template


def _node_args(spec: StructuredLLMSpec) -> list[str]:
    # The kubelet fills in $(...) from the container's environment, where the controller puts both.
    return [
        f"--nnodes={spec.multi_node.node_count}",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
        f"--master-port={MASTER_PORT}",
    ]
