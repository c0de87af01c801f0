"""The official openai client against the gateway: whole answers, streams, parse helpers, error classes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript, Mode
from tests.gateway_soak import wires
from tests.gateway_soak.carriers import TOOL, ResponseText, Spoken, ToolCall
from tests.gateway_soak.engine import ScriptedEngine
from tests.gateway_soak.wires import Framing, Script
from tests.unit.gateway.support import SCHEMA, gateway, pool_of, seeded

_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
_MESSAGES: Any = [{"role": "user", "content": "hi"}]


def _client(url: str) -> openai.AsyncOpenAI:
    http = openai.DefaultAioHttpClient(verify=False)
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, http_client=http)


class Person(BaseModel):
    """What the parse helpers ask for."""

    name: str
    age: int


def _sync_client(url: str) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, http_client=http)


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


async def test_sync_client_whole_stream_models_and_text_completions() -> None:
    def ask(url: str) -> None:
        with _sync_client(url) as client:
            chat = client.chat.completions
            whole = chat.create(model="toy", messages=_MESSAGES, response_format=_FORMAT)
            chunks = list(chat.create(model="toy", messages=_MESSAGES, response_format=_FORMAT, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text == whole.choices[0].message.content
            assert Person.model_validate_json(text)
            assert [model.id for model in client.models.list()] == ["toy"]
            asked: Any = {"structured_outputs": {"json": SCHEMA}}
            completion = client.completions.create(model="toy", prompt="p", extra_body=asked)
            assert completion.choices[0].text == text
            parts = client.completions.create(model="toy", prompt="p", stream=True, extra_body=asked)
            assert "".join(part.choices[0].text for part in parts) == text

    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        await asyncio.to_thread(ask, run.url)
        assert [line["outcome"] for line in run.request_lines] == ["ok"] * 4


async def test_parse_helpers_give_objects() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run, _client(run.url) as client:
        whole = await client.chat.completions.parse(model="toy", messages=_MESSAGES, response_format=Person)
        assert isinstance(whole.choices[0].message.parsed, Person)
        async with client.chat.completions.stream(
            model="toy", messages=_MESSAGES, response_format=Person
        ) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert final.choices[0].message.parsed == whole.choices[0].message.parsed

    def ask(url: str) -> None:
        with _sync_client(url) as sync:
            parsed = sync.chat.completions.parse(model="toy", messages=_MESSAGES, response_format=Person)
            assert isinstance(parsed.choices[0].message.parsed, Person)

    async with FakeEngine() as engine, gateway(pool_of(engine)) as run:
        await asyncio.to_thread(ask, run.url)


async def test_parse_helper_sees_a_cut_answer_as_cut_and_never_a_wrong_one() -> None:
    async with (
        FakeEngine(Mode.TRUNCATED) as engine,
        gateway(pool_of(engine)) as run,
        _client(run.url) as client,
    ):
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(model="toy", messages=_MESSAGES, response_format=Person)
        engine.set_mode(Mode.SCHEMA_VIOLATION)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.parse(model="toy", messages=_MESSAGES, response_format=Person)


async def test_raw_response_has_the_gateways_headers() -> None:
    async with FakeEngine() as engine, gateway(pool_of(engine)) as run, _client(run.url) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="toy",
            messages=_MESSAGES,
            response_format=_FORMAT,
            extra_headers={"x-request-id": "mine-1"},
        )
        assert raw.headers["x-structuredllm-outcome"] == "ok"
        assert raw.headers["x-structuredllm-attempts"] == "1"
        assert raw.headers["x-structuredllm-replica"] == "r0"
        assert raw.request_id == "mine-1"
        assert raw.parse().choices[0].finish_reason == "stop"
        async with client.chat.completions.with_streaming_response.create(
            model="toy", messages=_MESSAGES, response_format=_FORMAT, stream=True
        ) as streamed:
            lines = [line async for line in streamed.iter_lines() if line]
        assert lines[-2:] == [": structuredllm outcome=ok", "data: [DONE]"]


def _response_of(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a whole answer of the responses API and its events."""
    chosen = [Spoken(text)]
    carrier = ResponseText()
    return carrier.whole(chosen), carrier.chunks(chosen, seeded())


_TEXT_FORMAT: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}


async def test_responses_whole_stream_and_parsed() -> None:
    good = '{"name": "a", "age": 1}'
    whole, events = _response_of(good)
    stream = wires.streamed([wires.events(events, Framing(), seeded(), done=False)])
    bad, _ = _response_of('{"name": "a"}')
    script = Script({1: wires.json_of(whole), 2: stream, 3: wires.json_of(whole), 4: wires.json_of(bad)})
    async with (
        ScriptedEngine(script) as engine,
        gateway(pool_of(engine.url)) as run,
        _client(run.url) as client,
    ):
        answer = await client.responses.create(model="toy", input="case-1-", text=_TEXT_FORMAT)
        assert answer.output_text == good
        kinds, text = [], ""
        async for event in await client.responses.create(
            model="toy", input="case-2-", text=_TEXT_FORMAT, stream=True
        ):
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == good
        assert kinds[-1] == "response.completed"
        parsed = await client.responses.parse(model="toy", input="case-3-", text_format=Person)
        assert parsed.output_parsed == Person(name="a", age=1)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="toy", input="case-4-", text=_TEXT_FORMAT)
        assert caught.value.code == "structured_output_failed"
        assert [line["outcome"] for line in run.request_lines] == ["ok"] * 3 + ["schema_violation"]


async def test_embeddings_pass() -> None:
    item = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    body = {"object": "list", "data": [item], "model": "toy", "usage": usage}
    async with (
        ScriptedEngine(Script({1: wires.json_of(body)})) as engine,
        gateway(pool_of(engine.url)) as run,
        _client(run.url) as client,
    ):
        found = await client.embeddings.create(model="toy", input="case-1-", encoding_format="float")
        assert found.data[0].embedding == [0.5, -1.0]


async def test_tool_calls_of_a_strict_function() -> None:
    tool: Any = {"type": "function", "function": {"name": TOOL, "parameters": SCHEMA, "strict": True}}
    carrier = ToolCall()
    good = [Spoken('{"name": "a", "age": 1}', "tool_calls")]
    script = Script(
        {
            1: wires.json_of(carrier.whole(good)),
            2: wires.streamed([wires.events(carrier.chunks(good, seeded()), Framing(), seeded())]),
            3: wires.json_of(carrier.whole([Spoken('{"name": "a"', "tool_calls")])),
        }
    )

    def asked(case: int) -> Any:
        messages = [{"role": "user", "content": f"case-{case}-"}]
        return {"model": "toy", "messages": messages, "tools": [tool], "tool_choice": "required"}

    async with (
        ScriptedEngine(script) as engine,
        gateway(pool_of(engine.url)) as run,
        _client(run.url) as client,
    ):
        whole = await client.chat.completions.parse(**asked(1))
        calls = whole.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].function.parsed_arguments == {"name": "a", "age": 1}
        async with client.chat.completions.stream(**asked(2)) as stream:
            final = await stream.get_final_completion()
        again = final.choices[0].message.tool_calls
        assert again is not None
        assert again[0].function.arguments == good[0].text
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**asked(3))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_status_is_the_clients_error_class(
    status: int, error: type[openai.APIStatusError], stream: bool
) -> None:
    script = Script({1: wires.error("no, because", "SomeError", status)})
    messages: Any = [{"role": "user", "content": "case-1-"}]
    async with (
        ScriptedEngine(script) as engine,
        gateway(pool_of(engine.url)) as run,
        _client(run.url) as client,
    ):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(model="toy", messages=messages, stream=stream)
        assert caught.value.status_code == status
        assert "no, because" in caught.value.message
        assert caught.value.request_id


async def test_a_gateway_that_is_not_there_and_one_that_waits() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with _client(f"http://127.0.0.1:{closed.getsockname()[1]}") as client:
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(model="toy", messages=_MESSAGES)
    async with FakeEngine(Mode.HANG) as engine, gateway(pool_of(engine)) as run, _client(run.url) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.3).chat.completions.create(model="toy", messages=_MESSAGES)


async def test_a_schema_that_is_none_is_a_bad_request_with_its_place() -> None:
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    async with gateway(pool_of("http://127.0.0.1:1")) as run, _client(run.url) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="toy", messages=_MESSAGES, response_format=wrong)
        assert (caught.value.param or "").startswith("/response_format/json_schema/schema")
