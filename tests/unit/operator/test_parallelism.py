"""Workers, GPUs and nodes add up, and the sentence names the fields when they do not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_operator.errors import SpecError
from structuredllm_operator.plan.parallelism import build_resources, pod_workers
from tests.unit.operator.builders import spec

CLAIMS = [{"name": "gpus", "templateName": "four", "gpus": 4}, {"name": "nic", "templateName": "nic"}]


@pytest.mark.parametrize(
    ("parallelism", "nodes", "gpus"),
    [
        ({"tensor": 1, "pipeline": 3}, 1, 3),
        ({"tensor": 1, "pipeline": 3}, 3, 1),
        ({"tensor": 8, "pipeline": 4}, 2, 16),
        ({"tensor": 8, "pipeline": 4}, 4, 8),
        ({"tensor": 2, "pipeline": 1, "data": 4}, 1, 8),
    ],
)
def test_a_pod_gets_a_gpu_for_each_of_its_workers(parallelism: dict[str, int], nodes: int, gpus: int) -> None:
    found = spec(parallelism=parallelism, multiNode={"nodeCount": nodes})
    assert build_resources(found) == {"limits": {"nvidia.com/gpu": gpus}}


@pytest.mark.parametrize("vendor", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-3g.40gb"])
def test_the_vendors_resource_name_is_used(vendor: str) -> None:
    found = spec(engine={"image": "i", "gpuResourceName": vendor})
    assert build_resources(found) == {"limits": {vendor: 3}}


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (
            {"parallelism": {"tensor": 2, "pipeline": 3}, "multiNode": {"nodeCount": 2}},
            "InvalidParallelism",
            "spec.multiNode.nodeCount is 2, but must divide spec.parallelism.pipeline (3)",
        ),
        (
            {"parallelism": {"pipeline": 2, "data": 2}, "multiNode": {"nodeCount": 2}},
            "InvalidParallelism",
            "raise spec.replicas",
        ),
        (
            {
                "parallelism": {"tensor": 2, "pipeline": 4},
                "multiNode": {"nodeCount": 4},
                "resources": {"limits": {"nvidia.com/gpu": 8}},
            },
            "GPUCountMismatch",
            "nvidia.com/gpu is 8, but must be 2 in each pod",
        ),
        (
            {"placement": {"resourceClaims": CLAIMS}},
            "GPUCountMismatch",
            "the claims bring 4 GPUs, but a pod has 3",
        ),
        (
            {
                "parallelism": {"pipeline": 4},
                "placement": {"resourceClaims": CLAIMS},
                "resources": {"limits": {"nvidia.com/gpu": 4}},
            },
            "GPUCountMismatch",
            "spec.placement.resourceClaims brings the GPUs",
        ),
        (
            {"engine": {"image": "i", "accelerator": "cpu"}, "placement": {"resourceClaims": CLAIMS}},
            "GPUCountMismatch",
            "a pod has no GPU workers",
        ),
    ],
)
def test_what_does_not_add_up_is_refused(change: dict[str, Any], reason: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_resources(spec(**change))
    assert caught.value.reason == reason
    assert words in caught.value.message


def test_gpus_by_claim_ask_for_no_extended_resource() -> None:
    found = spec(parallelism={"pipeline": 4}, placement={"resourceClaims": CLAIMS})
    assert build_resources(found) == {"claims": [{"name": "gpus"}, {"name": "nic"}]}


def test_claims_of_other_devices_leave_the_gpus_as_they_were() -> None:
    found = spec(placement={"resourceClaims": [{"name": "nic", "templateName": "nic"}]})
    assert build_resources(found) == {"limits": {"nvidia.com/gpu": 3}, "claims": [{"name": "nic"}]}


@given(tensor=st.integers(1, 8), stages_of_a_node=st.integers(1, 4), nodes=st.integers(1, 16))
def test_no_stage_spans_nodes(tensor: int, stages_of_a_node: int, nodes: int) -> None:
    """Ranks as vLLM numbers them: stage by stage, and each node the next `local_world_size` of them."""
    pipeline = stages_of_a_node * nodes
    found = spec(
        parallelism={"tensor": tensor, "pipeline": pipeline},
        multiNode={"nodeCount": nodes},
        warmup={"burst": {"requests": 256, "concurrency": 256}},
    )
    local = pod_workers(found)
    for stage in range(pipeline):
        ranks = range(stage * tensor, (stage + 1) * tensor)
        assert len({rank // local for rank in ranks}) == 1
    assert (tensor * pipeline - 1) // local == nodes - 1
