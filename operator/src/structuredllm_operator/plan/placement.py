"""Where pods go: exclusive placement, topology spread and device claims in a pod template. Pure.

Owns these parts of the template. A spec without `placement` leaves the template as it is, byte by byte.
"""

from typing import Any, Final

from structuredllm_operator.api.labels import (
    COMPONENT_ENGINE,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    selector_labels,
)
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import Manifest

DEPLOYMENT_REVISION: Final = "pod-template-hash"
LWS_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"


def place(spec: StructuredLLMSpec, name: str, template: Manifest) -> None:
    """Add to the template of pods that answer requests what `spec.placement` says.

    Args:
        spec: the resource's.
        name: the resource's.
        template: changed in place; of a Deployment's pods or of a group's leaders.
    """
    pod = template["spec"]
    group = spec.multi_node.node_count > 1
    if spec.placement.exclusive_topology_key is not None and not group:
        # Groups get it from the LeaderWorkerSet controller, which also keeps a group's pods together.
        pod["affinity"] = {"podAntiAffinity": _no_other_engine(spec.placement.exclusive_topology_key)}
    if spec.placement.topology_spread:
        revision = LWS_REVISION if group else DEPLOYMENT_REVISION
        pod["topologySpreadConstraints"] = [
            {
                "topologyKey": one.topology_key,
                "maxSkew": one.max_skew,
                "whenUnsatisfiable": one.when_unsatisfiable,
                "labelSelector": {"matchLabels": selector_labels(name)},
                # Otherwise the pods of the old revision, which are about to go, push the new ones away.
                "matchLabelKeys": [revision],
            }
            for one in spec.placement.topology_spread
        ]
    if spec.placement.resource_claims:
        pod["resourceClaims"] = [
            {"name": claim.name, "resourceClaimTemplateName": claim.template_name}
            for claim in spec.placement.resource_claims
        ]


def _no_other_engine(topology_key: str) -> dict[str, Any]:
    others = {
        "matchExpressions": [
            {"key": COMPONENT_LABEL, "operator": "In", "values": [COMPONENT_ENGINE, COMPONENT_WORKER]}
        ]
    }
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": topology_key, "labelSelector": others}
        ]
    }
