"""Several workers: sums that never fall, state they agree on, a supervisor that keeps them running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_aiohttp import AiohttpTransport
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from structuredllm_gateway.errors import SettingsError
from structuredllm_gateway.server.shared_state import FolderState, LocalState
from structuredllm_gateway.server.supervisor import Supervisor
from structuredllm_gateway.server.workers import WorkerPlace, listening_socket
from structuredllm_gateway.settings import ServerSettings
from structuredllm_gateway.telemetry.aggregate import SHARED_OUT_GAUGES, WorkerMetrics
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.upstream.endpoints import Snapshot
from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.support import capturing_log, plain, until

ENCODE, _ = choose_encoder("application/openmetrics-text; version=1.0.0")


def _exposed(requests: int, in_flight: int, seconds: float = 0.2) -> str:
    registry = CollectorRegistry()
    Counter("structuredllm_gateway_requests", "r", ("code",), registry=registry).labels("200").inc(requests)
    Gauge("structuredllm_gateway_inflight_requests", "i", registry=registry).set(in_flight)
    Gauge("structuredllm_gateway_endpoints", "e", ("model",), registry=registry).labels("toy").set(3)
    timed = Histogram(
        "structuredllm_gateway_request_duration_seconds", "d", buckets=(0.1, 1), registry=registry
    )
    timed.observe(seconds, {"trace_id": f"t{requests}"})
    return ENCODE(registry).decode()


def _values(metrics: WorkerMetrics) -> tuple[float | None, ...]:
    registry = CollectorRegistry()
    registry.register(metrics)
    name = "structuredllm_gateway_{}".format
    return (
        registry.get_sample_value(name("requests_total"), {"code": "200"}),
        registry.get_sample_value(name("inflight_requests")),
        registry.get_sample_value(name("endpoints"), {"model": "toy"}),
        registry.get_sample_value(name("request_duration_seconds_bucket"), {"le": "1.0"}),
        registry.get_sample_value(name("request_duration_seconds_count")),
    )


def test_counts_add_up_and_facts_do_not() -> None:
    metrics = WorkerMetrics()
    metrics.take({0: _exposed(5, 1), 1: _exposed(7, 2)})
    assert _values(metrics) == (12, 3, 3, 2, 2)


def test_a_worker_that_ends_leaves_its_counts_but_not_its_gauges() -> None:
    metrics = WorkerMetrics()
    metrics.take({0: _exposed(5, 1), 1: _exposed(7, 2)})
    metrics.worker_ended(0)
    assert _values(metrics) == (12, 2, 3, 2, 2)
    metrics.take({0: _exposed(1, 0), 1: _exposed(8, 2)})
    assert _values(metrics) == (14, 2, 3, 3, 3)
    metrics.worker_ended(0)
    metrics.worker_ended(1)
    assert _values(metrics) == (14, None, None, 3, 3)


def test_exemplars_and_every_family_of_the_gateway_survive_the_sum() -> None:
    metrics = WorkerMetrics()
    own = Metrics(Snapshot)
    own.inter_token.series("toy").observe(0.02)
    own.replica_label("r0")
    text = ENCODE(own.registry).decode()
    metrics.take({0: text + "", 1: text})
    registry = CollectorRegistry()
    registry.register(metrics)
    summed = ENCODE(registry).decode()
    before = {line for line in text.splitlines() if line.startswith("# TYPE")}
    assert {line for line in summed.splitlines() if line.startswith("# TYPE")} == before
    gauges = {line.split()[2] for line in before if line.endswith(" gauge")}
    assert {"structuredllm_gateway_inflight_requests", "structuredllm_gateway_connections"} <= gauges
    assert gauges & SHARED_OUT_GAUGES
    labels = {"model": "toy", "le": "+Inf"}
    assert registry.get_sample_value("structuredllm_gateway_inter_token_seconds_bucket", labels) == 2
    metrics.take({0: _exposed(5, 1)})
    assert 'trace_id="t5"' in ENCODE(registry).decode()


def test_workers_agree_on_what_each_has_said(tmp_path: Path) -> None:
    now = [100.0]
    boards = [FolderState(tmp_path, number, lambda: now[0]) for number in range(3)]
    boards[0].publish({"quarantine/r0": 130.0})
    boards[1].publish({"quarantine/r0": 110.0, "quarantine/r1": 105.0})
    assert boards[2].held() == {"quarantine/r0": 130.0, "quarantine/r1": 105.0}
    now[0] = 106.0
    assert boards[2].held() == {"quarantine/r0": 130.0}
    boards[0].publish({})
    assert boards[2].held() == {"quarantine/r0": 130.0}, "looked at a moment ago"
    now[0] = 107.0
    assert boards[2].held() == {"quarantine/r0": 110.0}
    (tmp_path / "state-9.json").write_text("{")
    now[0] = 108.0
    assert boards[0].held() == {"quarantine/r0": 110.0}
    alone = LocalState()
    alone.publish({"a": 1.0})
    assert alone.held() == {"a": 1.0}


def test_a_place_survives_the_environment(tmp_path: Path) -> None:
    place = WorkerPlace(3, "::", 8080, tmp_path / "a;b")
    assert WorkerPlace.of_variable(place.as_variable()) == place


def test_workers_share_a_port_and_others_cannot_have_it() -> None:
    first = listening_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = listening_socket("127.0.0.1", port)
    assert second.getsockname()[1] == port
    first.close()
    second.close()


# A worker without its weight: it says that it runs, and ends as it is told.
_FAKE_WORKER = """
import os, signal, sys, time
number = os.environ["STRUCTUREDLLM_GATEWAY_WORKER"].split(";")[0]
folder = sys.argv[1]
open(f"{folder}/started-{number}-{os.getpid()}", "w").close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
time.sleep(60)
"""


@asynccontextmanager
async def _supervised(
    command: tuple[str, ...], tmp_path: Path, settings: ServerSettings, lines: list[Mapping[str, Any]]
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int]]]:
    async def no_pause(_seconds: float) -> None:
        await asyncio.sleep(0)

    supervisor = Supervisor(command, settings, tmp_path, capturing_log(lines), pause=no_pause)
    started = asyncio.Event()
    running = asyncio.create_task(supervisor.run(started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield supervisor, running
    finally:
        supervisor.stop()
        await asyncio.wait((running,))


def _settings(**more: Any) -> ServerSettings:
    base = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "workers": 2, "drain_delay_seconds": 0}
    return ServerSettings.model_validate({**base, **more})


async def test_a_worker_that_dies_is_started_again_and_all_end_together(tmp_path: Path) -> None:
    lines: list[Mapping[str, Any]] = []
    command = (sys.executable, "-S", "-c", _FAKE_WORKER, str(tmp_path))
    async with _supervised(command, tmp_path, _settings(), lines) as (supervisor, running):
        await until(lambda: len(list(tmp_path.glob("started-*"))) == 2)
        killed = supervisor.pids[0]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(list(tmp_path.glob("started-0-*"))) == 2)
        assert supervisor.pids[0] != killed
        ended = [line for line in lines if line["event"] == "worker_ended"]
        assert [(line["worker"], line["exit_code"]) for line in ended] == [(0, -signal.SIGKILL)]
        supervisor.stop()
        assert await running == 0
        assert supervisor.pids == {}


async def test_a_configuration_that_cannot_work_ends_all_workers(tmp_path: Path) -> None:
    command = (sys.executable, "-S", "-c", _FAKE_WORKER, str(tmp_path), "2")
    async with _supervised(command, tmp_path, _settings(), []) as (_, running):
        assert await asyncio.wait_for(running, 5) == 2


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    supervisor = Supervisor(("false",), _settings(port=port), tmp_path, capturing_log([]))
    with pytest.raises(SettingsError, match=rf"server\.port {port}"):
        await supervisor.run()
    server.close()
    await server.wait_closed()


async def test_two_real_workers_serve_one_port_and_are_counted_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeEngine() as engine:
        listed = json.dumps([{"model": "toy", "url": engine.url}])
        for name, value in {
            "AUTH__MODE": "open",
            "DISCOVERY__MODE": "static",
            "DISCOVERY__STATIC_ENDPOINTS": listed,
            "SERVER__HOST": "127.0.0.1",
            "SERVER__DRAIN_DELAY_SECONDS": "0",
        }.items():
            monkeypatch.setenv(f"STRUCTUREDLLM_GATEWAY_{name}", value)
        command = (sys.executable, "-m", "structuredllm_gateway.cli")
        async with (
            _supervised(command, tmp_path, _settings(), []) as (supervisor, running),
            httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http,
        ):
            places = [tmp_path / f"metrics-{number}.sock" for number in range(2)]
            async with asyncio.timeout(30):
                while not all(place.exists() for place in places):  # noqa: ASYNC110 - other processes' state
                    await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{supervisor.api_port}/v1/chat/completions"
            for _ in range(20):
                # A new connection each time: the kernel chooses the worker by connection.
                answer = await http.post(url, json=plain(), headers={"connection": "close"})
                assert answer.status_code == 200
            text = (await http.get(f"http://127.0.0.1:{supervisor.metrics_port}/metrics")).text
            labels = '{code="200",model="toy",outcome="plain",route="chat"}'
            assert f"structuredllm_gateway_requests_total{labels} 20.0" in text
            assert 'structuredllm_gateway_endpoints{model="toy",state="serving"} 1.0' in text
            shown = (await http.get(f"http://127.0.0.1:{supervisor.metrics_port}/debug/replicas")).json()
            assert (shown["workers"], [one["tries"] for one in shown["replicas"]]) == (2, [{"plain": 20}])
            supervisor.stop()
            assert await asyncio.wait_for(running, 20) == 0
