"""What is written to the API: preconditions, times, and what a vanished object means."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from structuredllm_operator.apply import post_events, write_gates, write_status
from structuredllm_operator.errors import ConflictError, NotFoundError, TransientError
from structuredllm_operator.kube.client import Kind, KubeClient
from structuredllm_operator.plan.gate import GateWrite
from structuredllm_operator.report import EventNote, Report
from tests.unit.operator.builders import observed, passed_gate, pod

NOW = "2026-01-02T00:00:00Z"


class RecordingClient:
    """Records writes; raises what it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.bodies: list[Mapping[str, Any]] = []

    async def patch_status(self, _: Kind, __: str, ___: str, body: Mapping[str, Any]) -> None:
        """Record a pod's status patch."""
        self._record(body)

    async def create(self, _: Kind, __: str, body: Mapping[str, Any]) -> None:
        """Record a new object."""
        self._record(body)

    async def apply(self, body: Mapping[str, Any], *, subresource: str = "") -> None:
        """Record an apply."""
        assert subresource == "status"
        self._record(body)

    def _record(self, body: Mapping[str, Any]) -> None:
        self.bodies.append(body)
        if self.error is not None:
            raise self.error


def as_client(fake: RecordingClient) -> KubeClient:
    """Return the fake under the type that the code asks for."""
    return cast("KubeClient", fake)


def write(status: str) -> GateWrite:
    """Return a write for the pod of the builders."""
    return GateWrite("toy-engine-x", "pod-1", status, "BurstPassed", "[c] fine")


@pytest.mark.parametrize(("status", "time"), [("True", "2026-01-01T00:00:00Z"), ("False", NOW)])
async def test_a_gate_is_bound_to_the_pods_uid_and_its_time_moves_with_the_status(
    status: str, time: str
) -> None:
    fake = RecordingClient()
    await write_gates(as_client(fake), "ns", observed(pod(gate=passed_gate())), [write(status)], NOW)
    (body,) = fake.bodies
    assert body["metadata"] == {"uid": "pod-1"}
    assert body["status"]["conditions"][0]["lastTransitionTime"] == time


@pytest.mark.parametrize("error", [NotFoundError("gone", 404), ConflictError("other uid", 409)])
async def test_a_pod_that_went_is_no_error_and_the_others_are_still_written(error: Exception) -> None:
    fake = RecordingClient(error)
    await write_gates(as_client(fake), "ns", observed(pod()), [write("True"), write("True")], NOW)
    assert len(fake.bodies) == 2


async def test_other_errors_of_gate_writes_are_raised() -> None:
    fake = RecordingClient(TransientError("no answer"))
    with pytest.raises(TransientError):
        await write_gates(as_client(fake), "ns", observed(pod()), [write("True")], NOW)


async def test_a_status_is_written_only_when_it_changed_and_bound_to_the_uid() -> None:
    fake = RecordingClient()
    await write_status(as_client(fake), observed(), Report({"conditions": []}, changed=False, events=()))
    assert fake.bodies == []
    await write_status(as_client(fake), observed(), Report({"conditions": []}, changed=True, events=()))
    assert fake.bodies[0]["metadata"]["uid"] == "uid-1"


@pytest.mark.parametrize("error", [None, ConflictError("exists", 409), TransientError("no answer")])
async def test_a_lost_event_is_harmless(error: Exception | None) -> None:
    fake = RecordingClient(error)
    notes = [EventNote("Normal", "Accepted", "a"), EventNote("Warning", "CrashLoop", "b")]
    await post_events(as_client(fake), observed(), notes, NOW)
    assert len({body["metadata"]["name"] for body in fake.bodies}) == 2
