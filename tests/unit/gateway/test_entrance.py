"""The entrance over real sockets: keys, rate headers, traces, what is measured of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.exposition import choose_encoder
from starlette.types import Message, Receive, Scope, Send

from structuredllm_gateway.app import registry_of
from structuredllm_gateway.entrance import Entrance
from structuredllm_gateway.keys.errors import RateLimitedError
from structuredllm_gateway.keys.gatekeeper import Gatekeeper
from structuredllm_gateway.keys.table import read_table
from structuredllm_gateway.reception import Reception
from structuredllm_gateway.settings import Settings
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.upstream.endpoints import Snapshot
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import (
    capturing_log,
    gateway,
    plain,
    pool_of,
    seeded,
    settings_with,
    structured,
)
from tests.unit.gateway.test_keys import KEY, OTHER_KEY, entry

AUTH = {"authorization": f"Bearer {KEY}"}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def _keyed(tmp_path: Path, *entries: Mapping[str, Any]) -> Settings:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": entries}))
    return settings_with(auth={"mode": "keys", "keys_file": path, "reload_seconds": 0.02})


async def test_without_a_key_only_the_probes_are_answered(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine), _keyed(tmp_path, entry())) as run:
        for path in ("/health", "/healthz", "/ready", "/readyz"):
            assert (await run.http.get(path)).status_code == 200
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/toy"),
            ("GET", "/debug/replicas"),
            ("GET", "/openapi.json"),
            ("GET", "/version"),
            ("GET", "/nothing"),
        ):
            answer = await run.http.request(method, path, json=plain() if method == "POST" else None)
            assert answer.status_code == 401, path
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"] == error["request_id"]
        assert engine.received == []
        assert run.metric("key_refusals_total", reason="unknown_key") == 8
        refused = {"model": "other", "route": "chat", "code": "401", "outcome": "request_rejected"}
        assert run.metric("requests_total", **refused) == 1
        line = run.request_lines[0]
        assert (line["status"], line["outcome"], line["reason"]) == (401, "request_rejected", "unknown_key")


async def test_a_known_key_is_served_named_and_never_passed_on(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine), _keyed(tmp_path, entry())) as run:
        answer = await run.http.post("/v1/chat/completions", json=plain(), headers=AUTH)
        assert answer.status_code == 200
        assert "authorization" not in engine.received[0].headers
        assert run.request_lines[0]["key"] == "team"
        assert KEY not in str(run.logs)


async def test_models_of_others_cannot_be_seen_or_asked(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(models=["other-*"]))
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        assert (await run.http.get("/v1/models", headers=AUTH)).json()["data"] == []
        assert (await run.http.get("/v1/models/toy", headers=AUTH)).status_code == 404
        answer = await run.http.post("/v1/chat/completions", json=plain(), headers=AUTH)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_allowed")
        assert answer.headers["x-structuredllm-outcome"] == "request_rejected"
        assert engine.received == []
        assert run.metric("key_refusals_total", reason="model_not_allowed") == 1


async def test_rate_headers_count_down_to_a_429(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(requests_per_minute=2, tokens_per_minute=10_000))
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        for left in ("1", "0"):
            answer = await run.http.post("/v1/chat/completions", json=plain(max_tokens=100), headers=AUTH)
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == left
            assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 10_000
        refused = await run.http.post("/v1/chat/completions", json=plain(), headers=AUTH)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "requests")
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-structuredllm-outcome"] == "overloaded"
        # The list of models costs nothing.
        assert (await run.http.get("/v1/models", headers=AUTH)).status_code == 200
        assert len(engine.received) == 2


async def test_tokens_are_settled_by_what_the_engine_counted(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(tokens_per_minute=5000))
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        first = await run.http.post("/v1/chat/completions", json=plain(max_tokens=4900), headers=AUTH)
        used = first.json()["usage"]["total_tokens"]
        assert int(first.headers["x-ratelimit-remaining-tokens"]) < 1000
        second = await run.http.post("/v1/chat/completions", json=plain(max_tokens=1000), headers=AUTH)
        assert second.status_code == 200
        assert int(second.headers["x-ratelimit-remaining-tokens"]) >= 5000 - used - 1000 - 100
        streamed = await run.http.post(
            "/v1/chat/completions", json=plain(max_tokens=4000, stream=True), headers=AUTH
        )
        assert streamed.status_code == 200
        after = await run.http.post("/v1/chat/completions", json=plain(max_tokens=4000), headers=AUTH)
        assert after.status_code == 200, "a stream without usage is settled by its parts"


async def test_tokens_that_are_used_up_are_a_429(tmp_path: Path) -> None:
    # One token a second comes back, so what the first request used is missing for a while.
    settings = _keyed(tmp_path, entry(tokens_per_minute=60))
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        await run.http.post("/v1/chat/completions", json=plain(max_tokens=1), headers=AUTH)
        refused = await run.http.post("/v1/chat/completions", json=plain(max_tokens=60), headers=AUTH)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
        assert refused.headers["x-structuredllm-outcome"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert len(engine.received) == 1


async def test_a_grant_is_settled_before_the_client_knows_that_it_is_done() -> None:
    table = read_table(json.dumps({"keys": [entry(concurrent_requests=1)]}).encode())
    gatekeeper = Gatekeeper(lambda: table, clock=lambda: 0.0)
    headers = [(name.encode(), value.encode()) for name, value in AUTH.items()]
    asked_again: list[bool] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def client(message: Message) -> None:
        if message["type"] == "http.response.start" or message["more_body"]:
            with pytest.raises(RateLimitedError):
                gatekeeper.enter(headers, counted=True)
        else:
            gatekeeper.enter(headers, counted=True).close(0)
            asked_again.append(True)

    async def nothing() -> Message:
        raise AssertionError

    metrics = Metrics(Snapshot)
    reception = Reception(gatekeeper, metrics, new_id=lambda: "id", rng=seeded(), log=capturing_log([]))
    entrance = Entrance(app, reception=reception, metrics=metrics)
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    await entrance(scope, nothing, client)
    assert asked_again == [True]


async def test_what_was_refused_or_failed_costs_no_tokens(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(tokens_per_minute=5000))
    async with FakeEngine(Mode.PLAIN_500) as engine, gateway(pool_of(engine), settings) as run:
        for _ in range(3):
            failed = await run.http.post("/v1/chat/completions", json=plain(max_tokens=4000), headers=AUTH)
            assert failed.status_code == 500


async def test_a_key_may_have_its_own_validation(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(validation="observe"), entry("strict", OTHER_KEY))
    async with FakeEngine(Mode.SCHEMA_VIOLATION) as engine, gateway(pool_of(engine), settings) as run:
        observed = await run.http.post("/v1/chat/completions", json=structured(), headers=AUTH)
        assert observed.status_code == 200
        assert observed.headers["x-structuredllm-outcome"] == "schema_violation"
        strict = {"authorization": f"Bearer {OTHER_KEY}"}
        enforced = await run.http.post("/v1/chat/completions", json=structured(), headers=strict)
        assert enforced.status_code == 502


async def test_changed_keys_take_effect_while_it_runs(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine), _keyed(tmp_path, entry())) as run:
        assert (await run.http.get("/v1/models", headers=AUTH)).status_code == 200
        _keyed(tmp_path, entry(key=OTHER_KEY))
        for _ in range(200):
            if (await run.http.get("/v1/models", headers=AUTH)).status_code == 401:
                break
        new = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await run.http.get("/v1/models", headers=new)).status_code == 200


async def test_the_openai_client_understands_the_refusals(tmp_path: Path) -> None:
    settings = _keyed(tmp_path, entry(requests_per_minute=1, models=["toy"]))
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        messages: Any = plain()["messages"]
        async with openai.AsyncOpenAI(base_url=run.url + "/v1", api_key="wrong", max_retries=0) as wrong:
            with pytest.raises(openai.AuthenticationError):
                await wrong.models.list()
        async with openai.AsyncOpenAI(base_url=run.url + "/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(model="no", messages=messages)
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="toy", messages=messages)
            assert caught.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", True),
        (f"01-{TRACE}-b7ad6b7169203331-01-more", True),
        (f"00-{TRACE}-b7ad6b7169203331-01-more", False),
        (f"ff-{TRACE}-b7ad6b7169203331-01", False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", False),
        ("00-1-2-01", False),
        (None, False),
    ],
)
async def test_a_good_traceparent_is_passed_and_else_one_is_made(given: str | None, is_kept: bool) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        headers = {"tracestate": "a=b", **({} if given is None else {"traceparent": given})}
        await run.http.post("/v1/chat/completions", json=plain(), headers=headers)
        seen = engine.received[0].headers
        version, trace, span, _ = seen["traceparent"].split("-")[:4]
        assert (len(version), len(trace), len(span)) == (2, 32, 16)
        assert (seen["traceparent"] == given) is is_kept
        assert ("tracestate" in seen) is is_kept
        assert run.request_lines[0]["trace_id"] == trace


async def test_duration_has_the_trace_as_its_exemplar() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        await run.http.post("/v1/chat/completions", json=plain(), headers=headers)
        encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
        text = encode(registry_of(run.app)).decode()
        lines = [line for line in text.splitlines() if "# {" in line]
        assert any(
            line.startswith("structuredllm_gateway_request_duration_seconds_bucket") and TRACE in line
            for line in lines
        )


async def test_own_time_is_apart_from_the_engine_s_and_tokens_are_counted() -> None:
    script = FakeScript(delay_seconds=0.3)
    async with FakeEngine(Mode.SLOW, script=script) as engine, gateway(pool_of(engine)) as run:
        answer = await run.http.post("/v1/chat/completions", json=structured())
        usage = answer.json()["usage"]
        labels = {"model": "toy", "route": "chat"}
        own = run.metric("own_seconds_sum", **labels)
        whole = run.metric("request_duration_seconds_sum", **labels)
        assert own is not None
        assert whole is not None
        assert whole >= 0.3
        assert own < whole - 0.25
        assert run.request_lines[0]["upstream_seconds"] >= 0.3
        for kind in ("prompt", "completion"):
            assert run.metric("tokens_total", model="toy", kind=kind) == usage[f"{kind}_tokens"]
            assert run.request_lines[0][f"{kind}_tokens"] == usage[f"{kind}_tokens"]


async def test_time_between_parts_is_counted_for_streams() -> None:
    script = FakeScript(chunk_delay_seconds=0.01, chunk_chars=4)
    async with FakeEngine(script=script) as engine, gateway(pool_of(engine)) as run:
        await run.http.post("/v1/chat/completions", json=structured(stream=True))
        count = run.metric("inter_token_seconds_count", model="toy")
        total = run.metric("inter_token_seconds_sum", model="toy")
        assert count is not None
        assert total is not None
        assert count >= 3
        assert total / count >= 0.005


async def test_fsm_errors_name_schema_and_backend() -> None:
    async with FakeEngine(Mode.ALWAYS_REJECT) as engine, gateway(pool_of(engine)) as run:
        await run.ask(structured())
        key = run.request_lines[0]["schema"]
        labels = {"model": "toy", "replica": "r0", "schema": key[:16], "backend": "auto"}
        assert run.metric("fsm_errors_total", **labels) == 1
