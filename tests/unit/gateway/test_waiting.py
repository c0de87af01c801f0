"""Requests that wait for a first replica: in order, within bounds, leaving when told to."""

from __future__ import annotations

import asyncio

import pytest

from structuredllm_gateway.replicas.waiting import WaitingRoom
from structuredllm_gateway.upstream.endpoints import EndpointState, Snapshot
from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.replica_parts import Stage, endpoint, known, view_of
from tests.unit.gateway.support import FixedEndpoints, gateway, plain, pool_of, settings_with, until


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_came_first_goes_first_and_other_models_stay() -> None:
    room, order = WaitingRoom(10), list[str]()

    async def wait(model: str, name: str) -> None:
        if await room.wait(model, 60):
            order.append(name)

    tasks = [asyncio.create_task(wait("m", str(number))) for number in range(5)]
    other = asyncio.create_task(wait("n", "other"))
    await _settle()
    assert (room.count, room.waiting("m"), room.models()) == (6, 5, frozenset({"m", "n"}))
    tasks[1].cancel()
    await _settle()
    # Who leaves makes room at once and is not counted any more.
    assert (room.count, room.waiting("m")) == (5, 4)
    room.wake("m")
    await _settle()
    assert order == ["0", "2", "3", "4"]
    assert (room.count, room.models()) == (1, frozenset({"n"}))
    other.cancel()
    await _settle()
    assert (room.count, room.models()) == (0, frozenset())


async def test_the_room_is_bounded() -> None:
    room = WaitingRoom(2)
    tasks = [asyncio.create_task(room.wait("m", 60)) for _ in range(2)]
    await _settle()
    assert not await room.wait("m", 60)
    assert not await room.wait("other", 60)
    room.wake("m")
    assert await asyncio.gather(*tasks) == [True, True]
    assert not await WaitingRoom(0).wait("m", 60)


@pytest.mark.looptime
async def test_the_wait_is_bounded(looptime: float) -> None:
    room = WaitingRoom(2)
    assert not await room.wait("m", 10)
    assert looptime == 10
    assert room.count == 0
    assert not await room.wait("m", 0)


async def test_waiters_of_a_model_go_on_when_a_replica_serves_or_the_model_is_gone() -> None:
    gated = endpoint("a", EndpointState.GATED)
    stage = Stage(known(gated), known(gated, model="other"))
    waiting = {name: asyncio.create_task(stage.roster.wait(name, 60)) for name in ("toy", "other")}
    await _settle()
    assert stage.metric("waiting_requests") == 2
    stage.source.view = view_of(known(gated), known("b", model="other"))
    await _settle()
    assert (waiting["toy"].done(), waiting["other"].done()) == (False, True)
    stage.source.view = view_of(known("b", model="other"))
    await _settle()
    assert waiting["toy"].result()


_NOBODY = known(endpoint("r0", EndpointState.GATED))


async def test_requests_wait_for_the_first_replica_and_are_then_answered() -> None:
    async with FakeEngine() as engine:
        source = FixedEndpoints(view_of(_NOBODY))
        async with gateway(source) as run:
            asking = [asyncio.create_task(run.ask(plain())) for _ in range(3)]
            await until(lambda: run.metric("waiting_requests") == 3)
            assert engine.received == []
            source.view = pool_of(engine).view
            answers = await asyncio.gather(*asking)
            assert [answer.status_code for answer in answers] == [200] * 3
            assert run.metric("waiting_requests") == 0


async def test_after_the_limit_or_with_the_room_full_it_is_a_503_that_says_when() -> None:
    settings = settings_with(
        warmup={"max_wait_seconds": 0.2, "max_waiting": 1}, limits={"no_endpoint_retry_after_seconds": 7}
    )
    async with gateway(FixedEndpoints(view_of(_NOBODY)), settings) as run:
        answers = await asyncio.gather(*(run.ask(plain()) for _ in range(3)))
        for answer in answers:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
            assert answer.json()["error"]["code"] == "no_serving_replica"
            assert answer.headers["x-structuredllm-outcome"] == "no_endpoint"
            assert answer.headers["x-structuredllm-attempts"] == "0"


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    settings = settings_with(warmup={"max_wait_seconds": 60, "max_waiting": 1})
    async with gateway(FixedEndpoints(view_of(_NOBODY)), settings) as run:
        asking = asyncio.create_task(run.ask(plain()))
        await until(lambda: run.metric("waiting_requests") == 1)
        asking.cancel()
        await until(lambda: run.metric("waiting_requests") == 0)


async def test_before_discovery_has_seen_anything_no_model_is_said_not_to_exist() -> None:
    async with gateway(FixedEndpoints(Snapshot())) as run:
        answer = await run.ask(plain())
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "discovering"
        assert int(answer.headers["retry-after"]) > 0
