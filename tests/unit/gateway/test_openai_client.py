"""The official openai client against the gateway: whole answers, streams, error classes, models."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.unit.gateway.support import SCHEMA, gateway, pool_of

_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
_MESSAGES: Any = [{"role": "user", "content": "hi"}]


def _client(url: str) -> openai.AsyncOpenAI:
    http = openai.DefaultAioHttpClient(verify=False)
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, http_client=http)


async def test_whole_answer_stream_and_models() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run, _client(run.url) as client:
        whole = await client.chat.completions.create(model="toy", messages=_MESSAGES, response_format=_FORMAT)
        text = ""
        async for chunk in await client.chat.completions.create(
            model="toy", messages=_MESSAGES, response_format=_FORMAT, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content
        assert [model.id async for model in client.models.list()] == ["toy"]
        assert (await client.models.retrieve("toy")).id == "toy"


@pytest.mark.parametrize(
    ("mode", "error", "code"),
    [
        (Mode.BAD_REQUEST, openai.BadRequestError, "upstream_4xx"),
        (Mode.ALWAYS_REJECT, openai.InternalServerError, "structured_output_failed"),
        (Mode.SCHEMA_VIOLATION, openai.InternalServerError, "structured_output_failed"),
        (Mode.DEAD, openai.InternalServerError, "upstream_unreachable"),
        (Mode.OVERLOADED, openai.InternalServerError, "upstream_5xx"),
    ],
)
async def test_failures_are_the_clients_error_classes(
    mode: Mode, error: type[openai.APIStatusError], code: str
) -> None:
    async with FakeEngine(mode) as engine, gateway(pool_of(engine)) as run, _client(run.url) as client:
        with pytest.raises(error) as caught:
            await client.chat.completions.create(model="toy", messages=_MESSAGES, response_format=_FORMAT)
        assert caught.value.code == code
        assert caught.value.request_id


async def test_unknown_model_is_not_found() -> None:
    async with gateway(pool_of("http://127.0.0.1:1")) as run, _client(run.url) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nobody", messages=_MESSAGES)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_error_inside_a_stream_is_raised() -> None:
    script = FakeScript(chunk_chars=4, chunk_delay_seconds=0.01)
    async with (
        FakeEngine(Mode.INVALID_JSON, script=script) as engine,
        gateway(pool_of(engine)) as run,
        _client(run.url) as client,
    ):
        stream = await client.chat.completions.create(
            model="toy", messages=_MESSAGES, response_format=_FORMAT, stream=True
        )
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code == "structured_output_failed"
