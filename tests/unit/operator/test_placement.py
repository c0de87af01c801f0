"""Where pods may go: what the spec says reaches the templates, and nothing else does."""

from typing import Any

from structuredllm_operator.plan.plan import build_children, parse_spec
from tests.unit.operator.builders import observed, raw_spec, revision

SPREAD = {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
RACK = "topology.kubernetes.io/rack"


def child(kind: str, **changes: Any) -> dict[str, Any]:
    """Return one child of a spec with these changes."""
    snapshot = observed(raw=raw_spec(**changes))
    return next(one for one in build_children(snapshot, parse_spec(snapshot.spec)) if one["kind"] == kind)


def pod(**placement: Any) -> dict[str, Any]:
    """Return the pod spec of a single-node engine."""
    found: dict[str, Any] = child("Deployment", placement=placement)["spec"]["template"]["spec"]
    return found


def group(**placement: Any) -> dict[str, Any]:
    """Return the LeaderWorkerSet of a three-node engine."""
    return child("LeaderWorkerSet", placement=placement, multiNode={"nodeCount": 3})


def test_without_placement_the_template_has_no_trace_of_it() -> None:
    assert not {"affinity", "topologySpreadConstraints", "resourceClaims"} & set(pod())
    assert revision(raw_spec(placement={})) == revision(raw_spec())


def test_replicas_are_spread_within_their_revision() -> None:
    (constraint,) = pod(topologySpread=[SPREAD])["topologySpreadConstraints"]
    assert constraint == {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {
            "matchLabels": {"structuredllm.io/name": "toy", "app.kubernetes.io/component": "engine"}
        },
        "matchLabelKeys": ["pod-template-hash"],
    }


def test_groups_are_spread_by_their_leaders() -> None:
    template = group(topologySpread=[SPREAD])["spec"]["leaderWorkerTemplate"]
    (constraint,) = template["leaderTemplate"]["spec"]["topologySpreadConstraints"]
    assert constraint["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/template-revision-hash"]
    assert "topologySpreadConstraints" not in template["workerTemplate"]["spec"]


def test_an_exclusive_pod_keeps_engines_of_all_kinds_away() -> None:
    (term,) = pod(exclusiveTopologyKey=RACK)["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == RACK
    assert term["labelSelector"]["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "In", "values": ["engine", "engine-worker"]}
    ]


def test_exclusive_groups_are_the_controllers_task_and_a_new_revision() -> None:
    found = group(exclusiveTopologyKey=RACK)
    annotations = found["metadata"]["annotations"]
    assert annotations == {"leaderworkerset.sigs.k8s.io/exclusive-topology": RACK}
    for template in ("leaderTemplate", "workerTemplate"):
        assert "affinity" not in found["spec"]["leaderWorkerTemplate"][template]["spec"]
    several = {"multiNode": {"nodeCount": 3}}
    exclusive = raw_spec(**several, placement={"exclusiveTopologyKey": RACK})
    assert revision(exclusive) != revision(raw_spec(**several))


def test_every_pod_of_a_group_claims_its_own_devices() -> None:
    found = group(resourceClaims=[{"name": "gpu", "templateName": "one-gpu", "gpus": 1}])
    for part in ("leaderTemplate", "workerTemplate"):
        template = found["spec"]["leaderWorkerTemplate"][part]["spec"]
        assert template["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
        assert template["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
