"""Bad input: an error in OpenAI's shape that says what and where, and nothing sent to an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.support import gateway, plain, pool_of, settings_with, structured

_DEEP: dict[str, Any] = {"type": "object"}
for _ in range(40):
    _DEEP = {"type": "object", "properties": {"a": _DEEP}}
_SCHEMA = "/response_format/json_schema/schema"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "invalid_json", None),
        (b"not json", 400, "invalid_json", None),
        (b'{"model": "toy", "x": NaN}', 400, "invalid_json", None),
        (b"\xff\xfe", 400, "invalid_json", None),
        (b"[]", 400, "invalid_json", None),
        (b"[" * 100_000, 400, "invalid_json", None),
        ({"messages": []}, 400, "missing_model", "model"),
        ({"model": 5}, 400, "missing_model", "model"),
        ({"model": "nobody"}, 404, "model_not_found", "model"),
        (plain(stream="yes"), 400, "invalid_request", "stream"),
        (plain(response_format="json"), 400, "invalid_request", "response_format"),
        (plain(response_format={"type": "yaml"}), 400, "invalid_request", "response_format"),
        (plain(response_format={"type": "json_schema"}), 400, "invalid_json_schema", _SCHEMA),
        (structured([]), 400, "invalid_json_schema", _SCHEMA),  # type: ignore[arg-type]
        (structured({"type": "objekt"}), 400, "invalid_json_schema", f"{_SCHEMA}/type"),
        (
            structured({"properties": {"a/b": {"minimum": "1"}}}),
            400,
            "invalid_json_schema",
            f"{_SCHEMA}/properties/a~1b/minimum",
        ),
        (structured({"pattern": "(a+"}), 400, "invalid_json_schema", f"{_SCHEMA}/pattern"),
        (structured({"$ref": "http://127.0.0.1:1/s.json"}), 400, "invalid_json_schema", _SCHEMA),
        (structured({"$ref": "file:///etc/passwd"}), 400, "invalid_json_schema", _SCHEMA),
        (structured({"$ref": "#/$defs/none"}), 400, "invalid_json_schema", _SCHEMA),
        (structured(_DEEP), 400, "schema_too_deep", _SCHEMA + "/properties/a" * 4),
        (structured({"enum": list(range(30_000))}), 400, "schema_too_large", _SCHEMA),
        (
            plain(structured_outputs={"json": "{not json"}),
            400,
            "invalid_json_schema",
            "/structured_outputs/json",
        ),
        (plain(guided_json={"type": "no"}), 400, "invalid_json_schema", "/guided_json/type"),
        (plain(structured_outputs=3), 400, "invalid_request", "structured_outputs"),
        (structured(guided_json={"type": "array"}), 400, "invalid_request", "/guided_json"),
    ],
)
async def test_request_is_refused_before_any_engine(
    body: dict[str, Any] | bytes, status: int, code: str, param: str | None
) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        if isinstance(body, bytes):
            answer = await run.http.post("/v1/chat/completions", content=body)
        else:
            answer = await run.ask(body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
        assert error["message"]
        assert error["request_id"] == answer.headers["x-request-id"]
        assert engine.received == []
        expected = "schema_rejected" if code.startswith(("schema", "invalid_json_")) else "request_rejected"
        assert answer.headers["x-structuredllm-outcome"] == expected
        assert answer.headers["x-structuredllm-attempts"] == "0"


async def test_unknown_models_share_one_label() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        for number in range(3):
            await run.ask({"model": f"nobody-{number}"})
        labels = {"model": "other", "route": "chat", "code": "404", "outcome": "request_rejected"}
        assert run.metric("requests_total", **labels) == 3


@pytest.mark.parametrize("declared", [True, False])
async def test_body_above_the_limit_is_a_413(declared: bool) -> None:
    settings = settings_with(limits={"max_body_bytes": 2000})
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        big = b'{"model":"toy","messages":["' + b"x" * 5000 + b'"]}'

        async def parts() -> Any:
            yield big[:1500]
            yield big[1500:]

        answer = await run.http.post("/v1/chat/completions", content=big if declared else parts())
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert answer.headers["connection"] == "close"
        assert engine.received == []


async def test_body_that_does_not_arrive_is_a_408() -> None:
    settings = settings_with(limits={"body_timeout_seconds": 0.1})
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(run.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        assert (await reader.read(100)).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/metrics", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/nobody", 404),
    ],
)
async def test_other_routes_are_refused_in_openai_shape(method: str, path: str, status: int) -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        answer = await run.http.request(method, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        assert answer.headers["x-request-id"]
        assert engine.received == []


@pytest.mark.parametrize(
    ("given", "kept"), [("a-b_c.1:2", True), ("x" * 200, False), ("a b", False), ("<script>", False)]
)
async def test_request_id_is_kept_only_when_well_formed(given: str, kept: bool) -> None:
    async with gateway(pool_of("http://127.0.0.1:1")) as run:
        answer = await run.http.get("/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept
        assert len(answer.headers.get_list("x-request-id")) == 1
