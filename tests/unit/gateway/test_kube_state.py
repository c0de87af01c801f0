"""From pods to endpoints: a table of pod states, pools by served name."""

from __future__ import annotations

from typing import Any

import pytest

from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointState,
    GrammarBackend,
    PickPolicy,
    StreamDelivery,
    StructuredPolicy,
    ValidationMode,
)
from structuredllm_gateway.upstream.kube_state import build_pools, pod_endpoint, read_resource
from tests.unit.gateway.kube_objects import RUNNING, pod, resource

_SERVING, _GATED, _TERMINATING = EndpointState.SERVING, EndpointState.GATED, EndpointState.TERMINATING


@pytest.mark.parametrize(
    ("changes", "gated", "state"),
    [
        ({}, True, _SERVING),
        ({"ready": "False"}, True, _GATED),
        ({"ready": None}, True, _GATED),
        ({"gate": "False"}, True, _GATED),
        ({"gate": None}, True, _GATED),
        ({"gate": "Unknown"}, True, _GATED),
        ({"message": "24 of 24 valid"}, True, _GATED),
        ({"message": None}, True, _GATED),
        ({"message": "[containerd://older] 24 of 24 valid"}, True, _GATED),
        ({"message": f"[{RUNNING}x] 24 of 24 valid"}, True, _GATED),
        ({"container": None}, True, _GATED),
        ({"container": "containerd://restarted"}, True, _GATED),
        ({"gate": None}, False, _SERVING),
        ({"gate": "False"}, False, _SERVING),
        ({"ready": "False", "gate": None}, False, _GATED),
        ({"deleting": True}, True, _TERMINATING),
        ({"deleting": True, "ready": "False"}, True, _TERMINATING),
        ({"deleting": True}, False, _TERMINATING),
    ],
)
def test_pod_state(changes: dict[str, Any], gated: bool, state: EndpointState) -> None:
    assert pod_endpoint(pod("p", **changes), gated=gated) == Endpoint("p", "http://10.0.0.1:8000", state)


@pytest.mark.parametrize("changes", [{"ip": None}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_pod_that_is_no_endpoint(changes: dict[str, Any]) -> None:
    assert pod_endpoint(pod("p", **changes), gated=True) is None


def test_address_and_port_follow_the_pod() -> None:
    found = pod_endpoint(pod("p", ip="fd00::1", port=9000), gated=True)
    assert found is not None
    assert found.url == "http://[fd00::1]:9000"


@pytest.mark.parametrize(
    ("spec", "model", "validation", "gated"),
    [
        ({}, "toy", ValidationMode.ENFORCE, True),
        ({"model": {"name": "served"}}, "served", ValidationMode.ENFORCE, True),
        ({"structuredOutput": {"validation": "Observe"}}, "toy", ValidationMode.OBSERVE, True),
        ({"structuredOutput": {"validation": "Off"}}, "toy", ValidationMode.OFF, True),
        ({"warmup": {"policy": "Required"}}, "toy", ValidationMode.ENFORCE, True),
        ({"warmup": {"policy": "BestEffort"}}, "toy", ValidationMode.ENFORCE, False),
        ({"warmup": {"policy": "Disabled"}}, "toy", ValidationMode.ENFORCE, False),
    ],
)
def test_resource(spec: dict[str, Any], model: str, validation: ValidationMode, gated: bool) -> None:
    found = read_resource(resource("toy", spec), ValidationMode.ENFORCE)
    assert (found.model, found.validation, found.gated) == (model, validation, gated)


def test_policy_is_the_resources_or_the_first_of_a_shared_pool() -> None:
    stated = [
        resource("b", {"model": {"name": "m"}, "routing": {"policy": "Session"}}),
        resource("a", {"model": {"name": "m"}, "routing": {"policy": "PrefixHash"}}),
        resource("c", {"model": {"name": "m"}}),
        resource("d", {"routing": {"policy": "newer than this gateway"}}),
    ]
    for order in (stated, stated[::-1]):
        pools = build_pools(order, [pod("p", owner="a")], ValidationMode.ENFORCE)
        assert pools["m"].policy is PickPolicy.PREFIX_HASH
        assert [one.name for one in pools["m"].endpoints] == ["p"]
        assert pools["d"].policy is None


def test_what_is_known_of_a_pod_is_bound_to_its_container() -> None:
    found = pod_endpoint(pod("p"), gated=True)
    assert found is not None
    assert (found.namespace, found.incarnation) == ("ns", RUNNING)


def test_pools_join_pods_to_their_resource_by_namespace_and_label() -> None:
    resources = [
        resource("toy", {"warmup": {"policy": "Disabled"}, "structuredOutput": {"validation": "Off"}}),
        resource("toy", {"model": {"name": "elsewhere"}}, namespace="other"),
        resource("twin", {"model": {"name": "toy"}}),
    ]
    pods = [
        pod("b", gate=None),
        pod("a", gate=None),
        pod("c", namespace="other"),
        pod("d", owner="twin", gate=None),
        pod("e", owner="deleted"),
        pod("f", ip=None),
    ]
    pools = build_pools(resources, pods, ValidationMode.ENFORCE)
    assert set(pools) == {"toy", "elsewhere"}
    assert [(e.name, e.state) for e in pools["toy"].endpoints] == [
        ("a", _SERVING),
        ("b", _SERVING),
        ("d", _GATED),
    ]
    assert [e.name for e in pools["toy"].serving] == ["a", "b"]
    assert pools["toy"].validation is ValidationMode.ENFORCE
    assert [e.name for e in pools["elsewhere"].serving] == ["c"]


def test_resource_without_pods_is_known_but_serves_nothing() -> None:
    pools = build_pools([resource("toy", {})], [], ValidationMode.OBSERVE)
    assert pools["toy"].endpoints == ()
    assert pools["toy"].validation is ValidationMode.OBSERVE


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({}, StructuredPolicy(backends=frozenset({GrammarBackend.XGRAMMAR}))),
        (
            {"structuredOutput": {"streaming": "Buffer", "repair": True, "backend": "auto"}},
            StructuredPolicy(StreamDelivery.BUFFER, repair=True),
        ),
        (
            {"structuredOutput": {"streaming": "Later", "repair": "yes", "backend": "outlines"}},
            StructuredPolicy(backends=frozenset({GrammarBackend.XGRAMMAR})),
        ),
    ],
)
def test_what_a_resource_says_of_structured_answers(spec: dict[str, Any], policy: StructuredPolicy) -> None:
    assert read_resource(resource("toy", spec), ValidationMode.ENFORCE).structured == policy


def test_resources_of_one_model_join_what_they_say() -> None:
    one = {"model": {"name": "m"}, "structuredOutput": {"streaming": "Buffer", "repair": True}}
    other = {"model": {"name": "m"}, "structuredOutput": {"backend": "guidance"}}
    resources = [resource("a", one), resource("b", other)]
    pool = build_pools(resources, [pod("p", owner="a")], ValidationMode.ENFORCE)["m"]
    assert pool.structured.streaming is StreamDelivery.BUFFER
    assert pool.structured.repair is False
    assert pool.backend == "mixed"
    assert len(pool.endpoints) == 1
