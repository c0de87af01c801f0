"""What gateways say of pods becomes a condition and events; no answer is not the same as none away."""

import copy
import dataclasses
from typing import Any, cast

import httpx
import pytest

from structuredllm_gateway.replicas.report import ReplicaReport
from structuredllm_gateway.upstream.endpoints import (
    Endpoint,
    EndpointState,
    ModelPool,
    Snapshot,
    ValidationMode,
)
from structuredllm_gateway.validation.outcomes import Outcome
from structuredllm_operator.kube.client import STRUCTURED_LLM
from structuredllm_operator.observe import observe
from structuredllm_operator.plan.observed import Observed, Quarantine
from structuredllm_operator.plan.plan import make_plan
from structuredllm_operator.quarantine_source import HttpQuarantines, resolve_all
from structuredllm_operator.report import Report, make_report
from tests.unit.gateway.replica_parts import Stage
from tests.unit.gateway.support import FixedEndpoints
from tests.unit.operator.builders import CONTAINER, observed, passed_gate, pod

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
SERVING = pod(gate=passed_gate(), ready=True)
SAID = Quarantine("grammar_rejected", covers_all=False, gateways=1, asked=2)


def report(snapshot: Observed, now: str = T0) -> Report:
    return make_report(snapshot, make_plan(snapshot, {}, 0.0), now=now, gateway_url="http://gw")


def condition(found: Report) -> dict[str, Any] | None:
    return next((one for one in found.status["conditions"] if one["type"] == "Quarantined"), None)


def saying(said: dict[str, Quarantine] | None, status: Any = None) -> Observed:
    snapshot = observed(SERVING, status=copy.deepcopy(dict(status or {})))
    return dataclasses.replace(snapshot, quarantined=said)


def test_a_quarantine_is_a_condition_and_a_warning_and_its_end_a_normal_event() -> None:
    calm = report(saying({}))
    found = condition(calm)
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "NoneQuarantined")
    # That nothing is wrong is no news.
    assert not [event for event in calm.events if event.reason == "NoneQuarantined"]

    kept = report(saying({SERVING.uid: SAID}, calm.status), now=T1)
    found = condition(kept)
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "GrammarRejects")
    assert f"pod {SERVING.name}: grammar_rejected (structured requests, 1 of 2 gateways)" in found["message"]
    assert found["lastTransitionTime"] == T1
    assert [(event.type, event.reason) for event in kept.events] == [("Warning", "GrammarRejects")]
    # Kept from traffic is not broken: the resource's own readiness is the gate's business.
    assert kept.ready

    over = report(saying({}, kept.status), now=T1)
    assert [(event.type, event.reason) for event in over.events] == [("Normal", "NoneQuarantined")]


def test_without_an_answer_the_condition_is_absent() -> None:
    kept = report(saying({SERVING.uid: SAID}))
    assert condition(report(saying(None, kept.status))) is None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("grammar_rejected", "GrammarRejects"),
        ("schema_violation", "SchemaInvalidRate"),
        ("timeout", "UpstreamErrors"),
        ("a class of a newer gateway", "SchemaInvalidRate"),
    ],
)
def test_reason_names_the_kind_of_failure(outcome: str, reason: str) -> None:
    found = condition(report(saying({SERVING.uid: dataclasses.replace(SAID, reason=outcome)})))
    assert found is not None
    assert found["reason"] == reason


def _stage(name: str = "p", container: str = CONTAINER) -> Stage:
    endpoints = tuple(
        Endpoint(one, f"http://{one}", EndpointState.SERVING, namespace="ns", incarnation=container)
        for one in (name, "other")
    )
    pools = {"toy": ModelPool("toy", ValidationMode.ENFORCE, endpoints)}
    stage = Stage(source=FixedEndpoints(Snapshot(pools, synced=True)))
    for _ in range(3):
        stage.roster.record(stage.pool(), stage.replica(name), Outcome.GRAMMAR_REJECTED, structured=True)
    return stage


def _source(answers: dict[str, Any], clock: Any = lambda: 0.0) -> tuple[HttpQuarantines, list[str]]:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        found = answers[request.url.host]
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("gateways", 9090)
        if not answers:
            raise OSError("no such name")
        return list(answers)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    source = HttpQuarantines(
        client, "http://gateways:9090", timeout_seconds=1, monotonic=clock, resolve=resolve
    )
    return source, asked


def _report_of(stage: Stage) -> dict[str, Any]:
    return ReplicaReport(stage.roster, clock=stage.clock, wall_clock=lambda: 0.0, slow_start=30).build()


async def test_the_real_reports_of_all_gateways_are_merged() -> None:
    calm = Stage()
    source, asked = _source(
        {
            "10.0.0.1": _report_of(_stage()),
            "10.0.0.2": _report_of(calm),
            "10.0.0.3": _report_of(_stage()),
            "10.0.0.4": httpx.ConnectError("gone"),
            "10.0.0.5": httpx.Response(404),
            "10.0.0.6": {"replicas": "of another version"},
        }
    )
    assert await source.fetch() == {
        ("ns", "p", CONTAINER): Quarantine("grammar_rejected", covers_all=False, gateways=2, asked=3)
    }
    assert asked[0] == "http://10.0.0.1:9090/debug/replicas"


async def test_one_answer_serves_for_a_while_and_then_they_are_asked_again() -> None:
    now = [0.0]
    source, asked = _source({"10.0.0.1": _report_of(Stage())}, lambda: now[0])
    assert await source.fetch() == {}
    assert await source.fetch() == {}
    assert len(asked) == 1
    now[0] = 6
    await source.fetch()
    assert len(asked) == 2


@pytest.mark.parametrize("answers", [{}, {"10.0.0.1": httpx.ConnectError("gone")}])
async def test_nobody_answering_is_not_knowing(answers: dict[str, Any]) -> None:
    source, _ = _source(answers)
    assert await source.fetch() is None


async def test_what_is_said_counts_for_the_container_that_runs_now() -> None:
    body = {
        "metadata": {"name": "p", "uid": "u-p"},
        "status": {"containerStatuses": [{"name": "engine", "containerID": CONTAINER}]},
    }
    resource = {"metadata": {"namespace": "ns", "name": "toy", "uid": "u", "generation": 1}}

    class Cluster:
        async def get(self, kind: Any, _namespace: str, _name: str) -> Any:
            return resource if kind is STRUCTURED_LLM else None

        async def list(self, *_given: Any, **_more: Any) -> list[Any]:
            return [body]

        async def serves(self, _kind: Any) -> bool:
            return False

    class Said:
        def __init__(self, container: str) -> None:
            self.container = container

        async def fetch(self) -> Any:
            return {("ns", "p", self.container): SAID}

    for container, expected in ((CONTAINER, {"u-p": SAID}), ("containerd://before", {})):
        found = await observe(cast(Any, Cluster()), cast(Any, None), "ns", "toy", Said(container))
        assert found is not None
        assert found.quarantined == expected
    found = await observe(cast(Any, Cluster()), cast(Any, None), "ns", "toy")
    assert found is not None
    assert found.quarantined is None


async def test_an_address_stands_for_itself() -> None:
    assert await resolve_all("127.0.0.1", 9090) == ["127.0.0.1"]
