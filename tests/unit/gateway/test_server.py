"""The process: health, readiness, two ports, a shutdown that loses no stream; the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from httpx_aiohttp import AiohttpTransport

from structuredllm_gateway import __version__
from structuredllm_gateway.app import create_app
from structuredllm_gateway.cli import main
from structuredllm_gateway.server.process import GatewayServer
from structuredllm_gateway.settings import Settings
from structuredllm_gateway.upstream.endpoints import Snapshot
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript
from tests.unit.gateway.support import (
    FixedEndpoints,
    capturing_log,
    gateway,
    plain,
    pool_of,
    settings_with,
    upstream_client,
)


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_health_never_looks_at_engines(path: str) -> None:
    async with gateway(FixedEndpoints(Snapshot())) as run:
        assert (await run.http.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/ready", "/readyz"])
async def test_ready_waits_for_discovery_and_ends_with_the_drain(path: str) -> None:
    source = FixedEndpoints(Snapshot())
    async with gateway(source) as run:
        before = await run.http.get(path)
        assert (before.status_code, before.json()["status"]) == (503, "discovering")
        source.view = Snapshot(synced=True)
        assert (await run.http.get(path)).status_code == 200
        source.view = Snapshot(synced=True, stale=True)
        stale = await run.http.get(path)
        assert (stale.status_code, stale.json()["stale"]) == (200, True)
        assert run.metric("discovery_stale") == 1
        run.app.state.life.draining = True
        after = await run.http.get(path)
        assert (after.status_code, after.json()["status"]) == (503, "draining")


async def test_version_and_openapi_are_served() -> None:
    async with gateway(pool_of("http://127.0.0.1:1")) as run:
        assert (await run.http.get("/version")).json() == {"version": __version__}
        paths = (await run.http.get("/openapi.json")).json()["paths"]
        assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(paths)


async def test_replicas_are_shown_on_the_metrics_port_only() -> None:
    async with FakeEngine() as engine:
        settings = settings_with(
            server={"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_delay_seconds": 0}
        )
        async with (
            _server(pool_of(engine), settings) as (_, api, metrics),
            httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http,
        ):
            assert (await http.post(f"{api}/v1/chat/completions", json=plain())).status_code == 200
            shown = (await http.get(f"{metrics}/debug/replicas")).json()
            assert [(one["model"], one["replica"], one["state"]) for one in shown["replicas"]] == [
                ("toy", "r0", "serving")
            ]
            assert shown["replicas"][0]["tries"] == {"plain": 1}
            assert shown["replicas"][0]["quarantine"]["state"] == "closed"
            assert (await http.get(f"{api}/debug/replicas")).status_code == 404


@asynccontextmanager
async def _server(
    source: FixedEndpoints, settings: Settings
) -> AsyncIterator[tuple[GatewayServer, str, str]]:
    app = create_app(
        settings, upstream=upstream_client(settings.upstream), endpoints=source, log=capturing_log([])
    )
    server = GatewayServer(app, settings.server, capturing_log([]))
    started = asyncio.Event()
    serving = asyncio.create_task(server.serve(started.set))
    await asyncio.wait_for(started.wait(), 2)
    try:
        yield server, f"http://127.0.0.1:{server.api_port}", f"http://127.0.0.1:{server.metrics_port}"
    finally:
        server.stop()
        await serving


_QUICK = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_delay_seconds": 0}


async def test_metrics_have_their_own_port() -> None:
    async with (
        FakeEngine() as engine,
        _server(pool_of(engine), settings_with(server=_QUICK)) as (_, api, metrics),
        httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http,
    ):
        await http.post(api + "/v1/chat/completions", json=plain())
        text = (await http.get(metrics + "/metrics")).text
        labels = '{code="200",model="toy",outcome="plain",route="chat"}'
        line = f"structuredllm_gateway_requests_total{labels} 1.0"
        assert line in text
        assert 'structuredllm_gateway_endpoints{model="toy",state="serving"} 1.0' in text
        assert (await http.get(api + "/metrics")).status_code == 404


async def test_a_stream_that_runs_is_finished_before_the_process_ends() -> None:
    script = FakeScript(chunk_delay_seconds=0.05, chunk_chars=4)
    async with (
        FakeEngine(script=script) as engine,
        _server(pool_of(engine), settings_with(server=_QUICK)) as (server, api, _),
    ):
        async with (
            httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http,
            http.stream("POST", api + "/v1/chat/completions", json=plain(stream=True)) as answer,
        ):
            chunks = answer.aiter_raw()
            await anext(chunks)
            server.stop()
            rest = b"".join([chunk async for chunk in chunks])
        assert rest.endswith(b": structuredllm outcome=plain\n\ndata: [DONE]\n\n")


async def test_during_the_drain_delay_requests_are_still_served_but_not_ready() -> None:
    settings = settings_with(server={**_QUICK, "drain_delay_seconds": 0.4})
    async with (
        FakeEngine() as engine,
        _server(pool_of(engine), settings) as (server, api, _),
        httpx.AsyncClient(transport=AiohttpTransport(verify=False)) as http,
    ):
        server.stop()
        assert (await http.get(api + "/ready")).status_code == 503
        assert (await http.post(api + "/v1/chat/completions", json=plain())).status_code == 200


def test_version_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for group, model in Settings.model_fields.items():
        for name in getattr(model.annotation, "model_fields", {}):
            assert f"--{group}.{name}".replace("_", "-") in text


def test_check_config_accepts_a_static_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Kubernetes injects for a Service called structuredllm-gateway must not be taken for a setting.
    monkeypatch.setenv("STRUCTUREDLLM_GATEWAY_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("STRUCTUREDLLM_GATEWAY_DISCOVERY__MODE", "static")
    listed = json.dumps([{"model": "toy", "url": "http://engine:8000"}])
    monkeypatch.setenv("STRUCTUREDLLM_GATEWAY_DISCOVERY__STATIC_ENDPOINTS", listed)
    monkeypatch.setenv("STRUCTUREDLLM_GATEWAY_AUTH__MODE", "open")
    assert main(["--check-config"]) == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server.port=abc"], "server.port"),
        (["--discovery.mode=static"], "static_endpoints"),
        ([], "auth.mode is not set: choose keys"),
        (["--server.workers=2"], "auth.mode is not set: choose keys"),
        (["--auth.mode=keys"], "needs keys_file"),
        (
            ["--check-config", "--auth.mode=open", "--discovery.kubeconfig=/does/not/exist"],
            "discovery.kubeconfig",
        ),
        (
            [
                "--check-config",
                "--auth.mode=open",
                "--discovery.mode=static",
                '--discovery.static-endpoints=[{"model":"a","url":"http://x"},{"model":"a","url":"http://x"}]',
            ],
            "listed twice",
        ),
    ],
)
def test_bad_configuration_names_the_setting(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
