"""The part of the spec that says where pods go: exclusive placement, spreading, device claims.

Owns these fields and their CEL rules. Pure, as all of `api`.
"""

from typing import Annotated, Final

from pydantic import Field

from structuredllm_operator.api.base import Model, ObjectName, rule
from structuredllm_operator.api.multi_node_spec import POD_WORKERS, POD_WORKERS_IN_WORDS

TopologyKey = Annotated[
    str,
    Field(min_length=1, max_length=317, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"),
]


class TopologySpread(Model):
    """How replicas are spread over the values of one node label."""

    topology_key: TopologyKey
    """Node label whose values are the domains. Required. Example: `topology.kubernetes.io/zone`."""
    max_skew: Annotated[int, Field(ge=1, le=1000)] = 1
    """Most replicas that one domain may have above the one with the fewest. Default: 1."""
    when_unsatisfiable: Annotated[
        str, Field(json_schema_extra={"enum": ["DoNotSchedule", "ScheduleAnyway"]})
    ] = "ScheduleAnyway"
    """DoNotSchedule: a replica that would break the rule waits. ScheduleAnyway: it is a wish.
    Default: ScheduleAnyway."""


class DeviceClaim(Model):
    """Devices that each pod claims for itself (dynamic resource allocation)."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the claim inside the pod. Required. Example: `gpus`."""
    template_name: ObjectName
    """ResourceClaimTemplate in the resource's namespace; each pod gets a claim of its own. Required.
    Example: `eight-h200`."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs that one such claim brings; 0 for other devices, as network cards. The sum over all claims must be
    the pod's number of workers; then no gpuResourceName is asked for. Default: 0. Example: 8."""


class PlacementSpec(Model):
    """Where pods go, beyond nodeSelector and tolerations."""

    exclusive_topology_key: TopologyKey | None = None
    """Node label: no two replicas share a value of it, and all pods of one replica have the same value (a
    rack, a network block). Label all nodes for engines with it. Default: none.
    Example: `topology.kubernetes.io/rack`."""
    topology_spread: Annotated[
        list[TopologySpread],
        Field(
            max_length=8,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["topologyKey"],
            },
        ),
    ] = []
    """How replicas are spread; several pods of one replica count as one. Default: none."""
    resource_claims: Annotated[
        list[DeviceClaim],
        Field(
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """Devices by dynamic resource allocation instead of, or beside, the extended resource. Default: none.
    Example: `[{name: gpus, templateName: eight-h200, gpus: 8}]`."""


_CLAIMED: Final = "self.placement.resourceClaims.exists(c, c.gpus > 0)"

CLAIM_RULES: Final = (
    rule(
        f"!{_CLAIMED} || self.placement.resourceClaims.map(c, c.gpus).sum() == {POD_WORKERS}",
        f"spec.placement.resourceClaims: the GPUs of all claims together must be {POD_WORKERS_IN_WORDS};"
        " correct their gpus",
    ),
    rule(
        f"!{_CLAIMED} || ((!has(self.resources.limits)"
        " || !(self.engine.gpuResourceName in self.resources.limits)) && (!has(self.resources.requests)"
        " || !(self.engine.gpuResourceName in self.resources.requests)))",
        "spec.placement.resourceClaims brings the GPUs: remove spec.engine.gpuResourceName from"
        " spec.resources, or set gpus of all claims to 0",
    ),
    rule(
        f"self.engine.accelerator != 'cpu' || !{_CLAIMED}",
        "spec.placement.resourceClaims brings GPUs, but spec.engine.accelerator is cpu: set gpus to 0, or"
        " accelerator gpu",
    ),
)
"""Rules on the whole spec."""
