"""From an event of the API server to the next pick, through the real watch code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from structuredllm_gateway.replicas.pool import PoolRules
from structuredllm_gateway.upstream.endpoints import ValidationMode
from structuredllm_gateway.upstream.kube_watch import WATCH_OPEN, KubeApiError
from structuredllm_gateway.upstream.kubernetes import KubernetesEndpoints
from structuredllm_gateway.validation.outcomes import Outcome
from tests.unit.gateway.kube_objects import pod, resource
from tests.unit.gateway.replica_parts import Stage, picked
from tests.unit.gateway.support import capturing_log, gateway, plain, seeded


class Feed:
    """A `KubeApi` whose events a test sends while the watch is open; an error breaks the watch."""

    def __init__(self, *items: Mapping[str, Any]) -> None:
        self.items = list(items)
        self.events: asyncio.Queue[Mapping[str, Any] | KubeApiError] = asyncio.Queue()
        self.away = False

    async def list(self) -> tuple[list[Mapping[str, Any]], str]:
        if self.away:
            raise KubeApiError("away")
        return self.items, "1"

    async def watch(self, resource_version: str) -> AsyncIterator[Mapping[str, Any]]:
        if self.away:
            raise KubeApiError("away")
        yield WATCH_OPEN
        while True:
            event = await self.events.get()
            if isinstance(event, KubeApiError):
                raise event
            yield event

    def modify(self, changed: Mapping[str, Any], kind: str = "MODIFIED") -> None:
        self.events.put_nowait({"type": kind, "object": changed})


def _source(resources: Feed, pods: Feed) -> KubernetesEndpoints:
    return KubernetesEndpoints(
        resources, pods, default_validation=ValidationMode.ENFORCE, log=capturing_log([]), rng=seeded()
    )


def _pods() -> Feed:
    return Feed(pod("a", ip="10.0.0.1"), pod("b", ip="10.0.0.2"))


@asynccontextmanager
async def _following(pods: Feed, rules: PoolRules | None = None) -> AsyncIterator[Stage]:
    source = _source(Feed(resource("toy", {})), pods)
    stage = Stage(source=source, rules=rules)
    running = asyncio.create_task(source.run())
    try:
        await _until(lambda: source.snapshot().synced)
        yield stage
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def _until(reached: Any) -> None:
    """Let events travel; at most one second of the loop's time."""
    async with asyncio.timeout(1):
        while not reached():  # noqa: ASYNC110 - what is waited for announces nothing
            await asyncio.sleep(0.01)


@pytest.mark.looptime
@pytest.mark.parametrize(
    "change",
    [
        {"deleting": True},
        {"ready": "False"},
        {"gate": "False"},
        {"container": "containerd://restarted"},
        {"phase": "Failed"},
    ],
)
async def test_what_must_not_be_asked_gets_nothing_within_a_second(change: dict[str, Any]) -> None:
    pods = _pods()
    async with _following(pods) as stage:
        assert picked(stage.pool()) == {"a", "b"}
        pods.modify(pod("a", ip="10.0.0.1", version=2, **change))
        await _until(lambda: picked(stage.pool()) == {"b"})
        assert picked(stage.pool(), structured=False) == {"b"}


@pytest.mark.looptime
async def test_a_quarantined_replica_gets_nothing_from_the_failure_on() -> None:
    async with _following(_pods()) as stage:
        for _ in range(3):
            stage.roster.record(stage.pool(), stage.replica("a"), Outcome.GRAMMAR_REJECTED, structured=True)
        # Nothing was awaited: the very next request goes elsewhere.
        assert picked(stage.pool()) == {"b"}


@pytest.mark.looptime
async def test_a_replica_that_becomes_ready_starts_slowly_but_not_those_that_were_there_before() -> None:
    pods = Feed(pod("a", ip="10.0.0.1"), pod("b", ip="10.0.0.2", gate="False"))
    async with _following(pods) as stage:
        assert stage.replica("a").ready_at == float("-inf")
        stage.clock.now += 500
        pods.modify(pod("b", ip="10.0.0.2", version=2))
        await _until(lambda: len(stage.source.snapshot().pools["toy"].serving) == 2)
        assert stage.replica("b").ready_at == stage.clock.now
        assert stage.replica("a").ready_at == float("-inf")


@pytest.mark.looptime
async def test_with_the_api_server_away_it_goes_on_with_what_it_knows_and_says_so() -> None:
    pods = _pods()
    async with _following(pods) as stage:
        pods.away = True
        pods.events.put_nowait(KubeApiError("connection reset"))
        await _until(lambda: stage.source.snapshot().stale)
        stage.clock.now += 90
        assert picked(stage.pool()) == {"a", "b"}
        assert stage.metric("discovery_stale_seconds") == 90
        # What it sees of the replicas itself still counts.
        for _ in range(3):
            stage.roster.record(stage.pool(), stage.replica("a"), Outcome.TIMEOUT, structured=False)
        assert picked(stage.pool(), structured=False) == {"b"}
        pods.away = False
        async with asyncio.timeout(60):
            while stage.source.snapshot().stale:  # noqa: ASYNC110 - what is waited for announces nothing
                await asyncio.sleep(0.1)
        assert stage.metric("discovery_stale_seconds") == 0


async def test_ready_says_that_discovery_is_out_of_touch_and_stays_ready() -> None:
    pods = Feed(pod("a", ip="127.0.0.1", port=1))
    async with gateway(_source(Feed(resource("toy", {})), pods)) as run:
        assert (await run.http.get("/ready")).json()["stale_seconds"] == 0
        pods.away = True
        pods.events.put_nowait(KubeApiError("connection reset"))
        async with asyncio.timeout(2):
            while not (found := await run.http.get("/ready")).json()["stale"]:
                pass
        assert (found.status_code, found.json()["serving"]) == (200, 1)
        assert found.json()["stale_seconds"] >= 0
        assert (await run.ask(plain())).status_code == 502
