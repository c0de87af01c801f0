"""The watch loop: no deletion is lost, failures back off within bounds, a stale view stays in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.upstream.kube_watch import KubeApiError, Reflector
from structuredllm_gateway.upstream.kubernetes import KubernetesEndpoints
from tests.unit.gateway.kube_objects import pod, resource
from tests.unit.gateway.support import capturing_log, seeded

Listed = tuple[list[Mapping[str, Any]], str]


class Script:
    """A `KubeApi` that plays steps in order (a list, watch events, an error), then hangs."""

    def __init__(self, *steps: Listed | list[Mapping[str, Any]] | KubeApiError) -> None:
        self.steps = list(steps)
        self.calls: list[str] = []
        self.played_out = asyncio.Event()

    async def _next(self, call: str) -> Any:
        self.calls.append(call)
        if not self.steps:
            self.played_out.set()
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, KubeApiError):
            raise step
        return step

    async def list(self) -> Listed:
        found: Listed = await self._next("list")
        return found

    async def watch(self, resource_version: str) -> AsyncIterator[Mapping[str, Any]]:
        for event in await self._next(f"watch {resource_version}"):
            if isinstance(event, KubeApiError):
                raise event
            yield event


def _event(kind: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, "object": item}


async def _played(script: Script) -> tuple[Reflector, list[float], list[Mapping[str, Any]]]:
    slept: list[float] = []
    logs: list[Mapping[str, Any]] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    reflector = Reflector("pods", script, lambda: None, log=capturing_log(logs), rng=seeded(), sleep=sleep)
    running = asyncio.create_task(reflector.run())
    await asyncio.wait_for(script.played_out.wait(), 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return reflector, slept, logs


def _names(reflector: Reflector) -> list[str]:
    return sorted(item["metadata"]["name"] for item in reflector.objects.values())


async def test_events_are_followed_and_a_watch_resumes_where_it_ended() -> None:
    script = Script(
        ([pod("a"), pod("b")], "5"),
        [
            _event("ADDED", pod("c", version=6)),
            _event("MODIFIED", pod("a", version=7, deleting=True)),
            _event("DELETED", pod("b", version=8)),
            _event("BOOKMARK", {"metadata": {"resourceVersion": "11"}}),
        ],
    )
    reflector, _, _ = await _played(script)
    assert _names(reflector) == ["a", "c"]
    assert reflector.objects["p-ns-a"]["metadata"]["deletionTimestamp"]
    assert script.calls == ["list", "watch 5", "watch 11"]
    assert reflector.synced
    assert not reflector.stale


async def test_410_lists_anew_so_that_a_missed_deletion_is_seen() -> None:
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    for failure in ([_event("ERROR", gone)], KubeApiError("gone", 410)):
        script = Script(([pod("a"), pod("b")], "5"), failure, ([pod("a")], "90"))
        reflector, _, _ = await _played(script)
        assert _names(reflector) == ["a"]
        assert script.calls == ["list", "watch 5", "list", "watch 90"]


async def test_failures_back_off_within_bounds_and_keep_the_view() -> None:
    failures = [KubeApiError("refused") for _ in range(12)]
    script = Script(([pod("a")], "5"), *failures)
    reflector, slept, logs = await _played(script)
    assert _names(reflector) == ["a"]
    assert reflector.stale
    assert script.calls[1:] == ["watch 5"] * 13
    assert slept[0] <= 0.2
    assert slept == sorted(slept[:6]) + slept[6:]
    assert 7 <= max(slept) <= 15
    # Once when it starts, not for each failure.
    assert [line["event"] for line in logs] == ["discovery_stale"]


async def test_recovery_is_said_and_resets_the_backoff() -> None:
    events = [_event("MODIFIED", pod("a", version=6))]
    script = Script(([pod("a")], "5"), *[KubeApiError("x")] * 5, events, KubeApiError("x"))
    reflector, slept, logs = await _played(script)
    assert [line["event"] for line in logs] == ["discovery_stale", "discovery_recovered", "discovery_stale"]
    assert slept[-1] <= 0.2
    assert reflector.stale


async def test_watch_that_breaks_in_the_middle_resumes_after_its_last_event() -> None:
    script = Script(([], "5"), [_event("ADDED", pod("a", version=6)), KubeApiError("reset")])  # type: ignore[list-item]
    reflector, _, _ = await _played(script)
    assert script.calls == ["list", "watch 5", "watch 6"]
    assert _names(reflector) == ["a"]


async def test_source_is_synced_only_when_both_kinds_are_and_stale_when_either_is() -> None:
    resources = Script(([resource("toy", {})], "1"), KubeApiError("away"))
    pods = Script(([pod("a"), pod("b", ready="False")], "1"), [_event("DELETED", pod("b", version=2))])
    source = KubernetesEndpoints(
        resources,
        pods,
        default_validation=ValidationMode.ENFORCE,
        log=capturing_log([]),
        rng=seeded(),
    )
    assert not source.snapshot().synced
    running = asyncio.create_task(source.run())
    await asyncio.wait_for(resources.played_out.wait(), 1)
    await asyncio.wait_for(pods.played_out.wait(), 1)
    view = source.snapshot()
    assert (view.synced, view.stale) == (True, True)
    assert [e.name for e in view.pools["toy"].endpoints] == ["a"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_answer_of_an_unexpected_form_does_not_end_discovery() -> None:
    script = Script(([pod("a")], "5"), [{"type": "ADDED", "object": {}}], ([pod("b")], "6"))
    reflector, _, logs = await _played(script)
    assert _names(reflector) == ["b"]
    assert [line["event"] for line in logs] == ["discovery_stale", "discovery_recovered"]
