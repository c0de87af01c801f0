"""The fake engine keeps its promises; the other parts' tests rest on it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jsonschema_rs
import pytest

from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode

_SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
_REJECT = {
    "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": "hi"}], **fields}


async def _post(
    http: aiohttp.ClientSession, engine: FakeEngine, body: Any, path: str = "/v1/chat/completions"
) -> tuple[int, Any]:
    async with http.post(engine.url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


async def _stream(http: aiohttp.ClientSession, engine: FakeEngine, body: Any) -> list[Any]:
    async with http.post(f"{engine.url}/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        text = await response.text()
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": _FORMAT},
        {"structured_outputs": {"json": _SCHEMA}},
        {"structured_outputs": {"json": "{}"}},
    ],
)
async def test_healthy_answers_satisfy_the_schema(
    http: aiohttp.ClientSession, fields: dict[str, Any]
) -> None:
    async with FakeEngine() as engine:
        status, body = await _post(http, engine, _chat(**fields))
        chunks = await _stream(http, engine, _chat(**fields))
        assert engine.requests[0] == _chat(**fields)
    assert status == 200
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == choice["message"]["content"]
    if "{}" not in str(fields):
        assert jsonschema_rs.is_valid(_SCHEMA, json.loads(streamed))


async def test_plain_json_object_text_completion_and_usage(http: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        _, plain = await _post(http, engine, _chat(n=2))
        _, loose = await _post(http, engine, _chat(response_format={"type": "json_object"}))
        _, text = await _post(http, engine, {"model": "toy", "prompt": "x"}, "/v1/completions")
        chunks = await _stream(http, engine, _chat(stream_options={"include_usage": True}))
    assert [choice["message"]["content"] for choice in plain["choices"]] == [
        "Hello from the fake engine."
    ] * 2
    assert json.loads(loose["choices"][0]["message"]["content"]) == {}
    assert text["choices"][0]["text"] == "Hello from the fake engine."
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0


async def test_cold_reject_has_the_shape_of_vllm_and_ends(http: aiohttp.ClientSession) -> None:
    body = _chat(response_format=_FORMAT)
    async with FakeEngine(Mode.COLD_REJECT, script=FakeScript(rejects=1)) as engine:
        assert await _post(http, engine, body) == (500, _REJECT)
        assert (await _post(http, engine, body))[0] == 200  # seen by now
        other = _chat(response_format={**_FORMAT, "json_schema": {"name": "b", "schema": {"type": "null"}}})
        assert (await _post(http, engine, other))[0] == 200  # unseen, but only one reject was asked for
        assert engine.rejects == 1


async def test_plain_requests_are_never_rejected(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(Mode.ALWAYS_REJECT) as engine:
        assert (await _post(http, engine, _chat()))[0] == 200
        assert engine.rejects == 0


async def test_a_reject_in_a_stream_comes_after_http_200(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(Mode.ALWAYS_REJECT, script=FakeScript(reject_after_chars=3)) as engine:
        events = await _stream(http, engine, _chat(response_format=_FORMAT))
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[1]["choices"][0]["delta"]["content"] == '{"a'
    assert events[2:] == [_REJECT]


@pytest.mark.parametrize(
    ("mode", "check"),
    [
        (Mode.INVALID_JSON, lambda text, finish: text.startswith('{{"') and finish == "stop"),
        (Mode.TRAILING_TEXT, lambda text, finish: text.startswith('{"age": 1}\n') and finish == "stop"),
        (Mode.TRUNCATED, lambda text, finish: '{"age": 1}'.startswith(text) and finish == "length"),
        (Mode.EMPTY, lambda text, finish: text == "" and finish == "stop"),
        (Mode.SCHEMA_VIOLATION, lambda text, _finish: not jsonschema_rs.is_valid(_SCHEMA, json.loads(text))),
    ],
)
async def test_wrong_answers(http: aiohttp.ClientSession, mode: Mode, check: Any) -> None:
    async with FakeEngine(mode) as engine:
        _, body = await _post(http, engine, _chat(response_format=_FORMAT))
    choice = body["choices"][0]
    assert check(choice["message"]["content"], choice["finish_reason"])


@pytest.mark.parametrize(
    ("mode", "status"), [(Mode.BAD_REQUEST, 400), (Mode.OVERLOADED, 503), (Mode.PLAIN_500, 500)]
)
async def test_http_errors(http: aiohttp.ClientSession, mode: Mode, status: int) -> None:
    async with FakeEngine(mode) as engine:
        async with http.post(f"{engine.url}/v1/chat/completions", json=_chat()) as response:
            assert response.status == status
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 200


async def test_dead_closes_without_a_byte(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(Mode.DEAD) as engine:
        for attempt in (
            http.post(f"{engine.url}/v1/chat/completions", json=_chat()),
            http.get(f"{engine.url}/health"),
        ):
            with pytest.raises(aiohttp.ClientConnectionError):
                await attempt


async def test_dead_mid_stream_cuts_the_body(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(Mode.DEAD_MID_STREAM) as engine:
        with pytest.raises(aiohttp.ClientError):
            await _stream(http, engine, _chat())


async def test_hang_keeps_health_good_and_stop_ends_it(http: aiohttp.ClientSession) -> None:
    engine = FakeEngine(Mode.HANG)
    await engine.start()
    hanging = asyncio.create_task(_post(http, engine, _chat()))
    async with asyncio.timeout(5.0):
        while not engine.in_flight:  # noqa: ASYNC110 - its counters have no event
            await asyncio.sleep(0)
    async with http.get(f"{engine.url}/health") as response:
        assert response.status == 200
    assert not hanging.done()
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await hanging


async def test_modes_change_per_request_and_by_hand(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(script=FakeScript(per_request=(Mode.PLAIN_500,))) as engine:
        async with http.post(f"{engine.url}/v1/chat/completions", json=_chat()) as response:
            assert response.status == 500
        assert (await _post(http, engine, _chat()))[0] == 200
        engine.set_mode("overloaded")
        assert (await _post(http, engine, _chat()))[0] == 503


@pytest.mark.parametrize(
    ("body", "status", "hint"),
    [
        ([], 400, "JSON object"),
        (_chat(model="other"), 404, "does not exist"),
        (_chat(response_format={"type": "grammar"}), 400, "grammar"),
        (_chat(response_format={"type": "json_schema"}), 400, "schema"),
        (_chat(structured_outputs={"json": "{"}), 400, "not JSON"),
        (
            _chat(response_format={"type": "json_schema", "json_schema": {"schema": {"pattern": "^q"}}}),
            400,
            "fake",
        ),
        (_chat(n=0), 400, "n must"),
    ],
)
async def test_bad_requests(http: aiohttp.ClientSession, body: Any, status: int, hint: str) -> None:
    async with FakeEngine() as engine:
        answered, error = await _post(http, engine, body)
    assert answered == status
    assert hint in error["error"]["message"]
    assert error["error"]["code"] == status


async def test_api_key_and_headers(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(script=FakeScript(api_key="k")) as engine:
        assert (await _post(http, engine, _chat()))[0] == 401
        http.headers["Authorization"] = "Bearer k"
        http.headers["X-Request-Id"] = "r1"
        assert (await _post(http, engine, _chat()))[0] == 200
        assert engine.received[0].headers["x-request-id"] == "r1"
        assert engine.received[0].path == "/v1/chat/completions"


async def test_telemetry(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(Mode.ALWAYS_REJECT) as engine:
        await _post(http, engine, _chat(response_format=_FORMAT))
        engine.info["pipeline_parallel_size"] = 2
        async with http.get(f"{engine.telemetry_url}/info") as response:
            assert (await response.json())["pipeline_parallel_size"] == 2
        async with http.get(f"{engine.telemetry_url}/metrics") as response:
            text = await response.text()
    assert 'structuredllm_engine_grammar_rejects_total{backend="xgrammar"} 1' in text
    assert (
        'structuredllm_engine_patch_info{id="p001-batch-queue-drain",vllm="0.32.0",state="active"} 1' in text
    )


async def test_fixed_ports_on_pod_like_addresses_and_restart(http: aiohttp.ClientSession) -> None:
    first = FakeEngine(host="127.83.1.1", port=8000, telemetry_port=9464)
    async with first, FakeEngine(host="127.83.1.2", port=8000, telemetry_port=9464, model="b") as second:
        assert (first.url, second.telemetry_url) == ("http://127.83.1.1:8000", "http://127.83.1.2:9464")
        async with http.get(f"{second.url}/v1/models") as response:
            assert [item["id"] for item in (await response.json())["data"]] == ["b"]
        await first.stop()
        await first.start()
        assert (await _post(http, first, _chat()))[0] == 200


async def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    async with FakeEngine() as engine:
        clash = FakeEngine(telemetry_port=engine.port)
        with pytest.raises(OSError, match="address already in use"):
            await clash.__aenter__()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", clash.port)


async def test_the_command_serves_until_sigterm(http: aiohttp.ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.fake_engine", "--model", "m", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    urls = json.loads(await process.stdout.readline())
    async with http.get(f"{urls['url']}/v1/models") as response:
        assert [item["id"] for item in (await response.json())["data"]] == ["m"]
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
