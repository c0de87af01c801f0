"""Static endpoints with a gate: nothing is served before the burst has passed, nor after a reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from structuredllm_gateway.settings import ProbeSettings
from structuredllm_gateway.upstream.endpoints import EndpointState
from structuredllm_gateway.upstream.prober import BurstProbe, ProbeResult, ProbeVerdict
from structuredllm_gateway.upstream.reachable import is_reachable
from structuredllm_gateway.upstream.static import StaticEndpoint, StaticEndpoints, StaticGate
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import capturing_log, gateway, plain, seeded, settings_with, structured, until

_SERVING, _GATED = EndpointState.SERVING, EndpointState.GATED
_HEALTHY = ProbeResult(ProbeVerdict.HEALTHY, "24 of 24 valid")
_FAULTY = ProbeResult(ProbeVerdict.FAULTY, "3 of 24 wrong")


class World:
    """One engine: whether it is there, what bursts show, and each step that waits for a turn."""

    def __init__(self, *verdicts: ProbeResult) -> None:
        self.verdicts = list(verdicts)
        self.there = True
        self.bursts = 0
        self.slept: list[float] = []
        self.turn = asyncio.Event()
        self.logs: list[Mapping[str, Any]] = []
        self.source = StaticEndpoints(
            [StaticEndpoint("toy", "http://e:1")],
            StaticGate(
                probe=self.probe,
                is_reachable=self.is_reachable,
                retry_seconds=5,
                max_retry_seconds=20,
                health_seconds=2,
                log=capturing_log(self.logs),
                rng=seeded(),
                sleep=self.sleep,
            ),
        )
        self.states: list[EndpointState] = []
        self.source.subscribe(lambda: self.states.append(self.state))

    @property
    def state(self) -> EndpointState:
        return self.source.snapshot().pools["toy"].endpoints[0].state

    async def probe(self, url: str, model: str) -> ProbeResult:
        assert (url, model) == ("http://e:1", "toy")
        assert self.state is _GATED
        self.bursts += 1
        return self.verdicts.pop(0)

    async def is_reachable(self, _url: str) -> bool:
        return self.there

    async def sleep(self, seconds: float) -> None:
        """Wait until the test lets time pass."""
        self.slept.append(seconds)
        await self.turn.wait()
        self.turn.clear()

    async def tick(self) -> None:
        asleep = len(self.slept)
        self.turn.set()
        await until(lambda: len(self.slept) > asleep)


@asynccontextmanager
async def _following(*verdicts: ProbeResult) -> AsyncIterator[World]:
    world = World(*verdicts)
    assert world.state is _GATED
    running = asyncio.create_task(world.source.run())
    try:
        await until(lambda: world.slept)
        yield world
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_an_endpoint_serves_once_its_burst_has_passed() -> None:
    async with _following(_HEALTHY) as world:
        assert (world.state, world.states) == (_SERVING, [_SERVING])
        await world.tick()
        assert (world.state, world.bursts) == (_SERVING, 1)


async def test_a_burst_that_fails_is_repeated_after_growing_pauses() -> None:
    async with _following(*[_FAULTY] * 5, _HEALTHY) as world:
        for _ in range(4):
            await world.tick()
            assert world.state is _GATED
        pauses = world.slept.copy()
        for pause, most in zip(pauses, (5, 10, 20, 20, 20), strict=True):
            assert most / 2 <= pause <= most
        await world.tick()
        assert world.state is _SERVING
        assert [line["event"] for line in world.logs] == ["endpoint_gated"] * 5 + ["endpoint_passed"]


async def test_what_was_away_is_gated_until_it_has_passed_again() -> None:
    async with _following(_HEALTHY, _FAULTY, _HEALTHY) as world:
        first = world.source.snapshot().pools["toy"].endpoints[0].incarnation
        world.there = False
        await world.tick()
        assert (world.state, world.bursts) == (_GATED, 1)
        await world.tick()
        assert world.bursts == 1
        # Connections work again, which alone proves nothing.
        world.there = True
        await world.tick()
        assert (world.state, world.bursts) == (_GATED, 2)
        await world.tick()
        assert (world.state, world.bursts) == (_SERVING, 3)
        assert world.source.snapshot().pools["toy"].endpoints[0].incarnation != first


async def test_a_connect_error_of_a_request_has_the_endpoint_looked_at_now() -> None:
    async with _following(_HEALTHY, _HEALTHY) as world:
        endpoint = world.source.snapshot().pools["toy"].endpoints[0]
        world.source.suspect(endpoint)
        await until(lambda: len(world.slept) == 2)
        # It was there: an idle connection had been closed, nothing more.
        assert (world.state, world.bursts) == (_SERVING, 1)
        world.there = False
        world.source.suspect(endpoint)
        await until(lambda: world.state is _GATED)


async def test_reachable_tells_a_slow_engine_from_one_that_is_gone() -> None:
    async with FakeEngine() as engine:
        assert await is_reachable(engine.url)
        url = engine.url
    assert not await is_reachable(url)
    async with FakeEngine(Mode.DEAD) as engine:
        assert not await is_reachable(engine.url)

    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        closed.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await is_reachable(f"http://127.0.0.1:{port}", answer_seconds=0.05)
    await closed.wait()
    server.close()


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        (Mode.HEALTHY, ProbeVerdict.HEALTHY),
        (Mode.ALWAYS_REJECT, ProbeVerdict.FAULTY),
        (Mode.SCHEMA_VIOLATION, ProbeVerdict.FAULTY),
        (Mode.DEAD, ProbeVerdict.UNREACHABLE),
        (Mode.BAD_REQUEST, ProbeVerdict.UNDECIDED),
    ],
)
async def test_real_bursts_give_their_verdict(mode: Mode, verdict: ProbeVerdict) -> None:
    seen: list[tuple[str, str]] = []
    probe = BurstProbe(ProbeSettings(requests=4, concurrency=4, timeout_seconds=5), lambda: "seed")
    probe.listen(lambda model, found: seen.append((model, found)))
    async with FakeEngine(mode) as engine:
        result = await probe(engine.url, "toy")
    assert result.verdict is verdict
    assert result.message
    assert seen == [("toy", verdict)]


async def test_a_cold_engine_is_not_shown_to_clients_over_real_sockets() -> None:
    # The first structured answers of a fresh engine fail: the burst has them, no client does.
    script = FakeScript(rejects=4)
    seeds = iter(range(100))
    async with FakeEngine(Mode.COLD_REJECT, script=script) as engine:
        gate = StaticGate(
            probe=BurstProbe(ProbeSettings(requests=8, concurrency=8), lambda: str(next(seeds))),
            is_reachable=is_reachable,
            retry_seconds=0.01,
            max_retry_seconds=0.02,
            health_seconds=0.01,
            log=capturing_log([]),
            rng=seeded(),
        )
        source = StaticEndpoints([StaticEndpoint("toy", engine.url, name="r0")], gate)
        async with gateway(source, settings_with(warmup={"max_wait_seconds": 5})) as run:
            answers = await asyncio.gather(*(run.ask(structured()) for _ in range(4)), run.ask(plain()))
            assert [answer.status_code for answer in answers] == [200] * 5
            assert run.metric("fsm_errors_total", model="toy", replica="r0") is None
            engine.set_mode(Mode.DEAD)
            broken = await run.ask(plain())
            assert broken.status_code in (502, 503)
            await until(lambda: run.metric("endpoints", model="toy", state="gated") == 1)
            engine.set_mode(Mode.HEALTHY)
            await until(lambda: run.metric("endpoints", model="toy", state="serving") == 1)
            assert (await run.ask(structured())).status_code == 200
