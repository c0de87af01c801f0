"""Failures say why, and refused tokens are recovered from: the real engine, three stages, asynchronous.

The engine's worker can be told, by a request's id, to sample tokens that the grammar refuses
(tests/cpu_engine, `refusals.py`).
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.client import engine_client
from tests.engine.engine_process import Engine, running_engine
from tests.engine.traffic import schema_of

ENVIRONMENT = {"STRUCTUREDLLM_PATCHES": "required", "STRUCTUREDLLM_TEST_REFUSE": "1"}
ARGUMENTS = ("--async-scheduling", "--enable-prefix-caching", "--block-size", "32")
RECOVERIES = "structuredllm_engine_grammar_recoveries_total"
STALE = "structuredllm_engine_stale_mask_total"
REJECTS = "structuredllm_engine_grammar_rejects_total"

PLANS = ("1", "3-9-15", "2", "5-11", "1-4")
"""Which masks of a request are overruled; a step that is thrown away after a refusal has one too."""

DEAD_END = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": r"^[^\s\S]$"}},
    "required": ["a"],
    "additionalProperties": False,
}
"""Compiles, and after `{"a":"` allows nothing: there is no such character."""


@pytest.fixture(scope="module")
def engine(engine_env: Path, toy_model: Path) -> Iterator[Engine]:
    with running_engine("honest", engine_env, toy_model, env=ENVIRONMENT, arguments=ARGUMENTS) as running:
        yield running


def greedy(number: int) -> dict[str, Any]:
    """Return a completion request at temperature 0; each third one is plain."""
    body: dict[str, Any] = {
        "model": "toy",
        "prompt": "Tell me about somebody. " * 6 + f"Person {number}. " + "word " * (number * 7 % 60),
        "max_tokens": 40,
        "temperature": 0,
        "logprobs": 2,
        "return_token_ids": True,
    }
    return body if number % 3 == 0 else {**body, "structured_outputs": {"json": schema_of(number, "h")}}


async def post(client: httpx.AsyncClient, path: str, body: Mapping[str, Any], name: str) -> httpx.Response:
    return await client.post(path, json=body, headers={"X-Request-Id": name})


def ask(engine: Engine, asked: Sequence[tuple[str, Mapping[str, Any], str]]) -> list[httpx.Response]:
    """Send requests (path, body, id) at once; returns the answers in the same order."""

    async def all_at_once() -> list[httpx.Response]:
        async with engine_client(engine.url, seconds=240) as client:
            return await asyncio.gather(*(post(client, *one) for one in asked))

    return asyncio.run(all_at_once())


def answers(engine: Engine, names: list[str]) -> list[tuple[Any, ...]]:
    """Return what greedy requests with these ids got: finish reason, token ids, text, tokens of logprobs."""
    found = []
    for response in ask(engine, [("/v1/completions", greedy(n), name) for n, name in enumerate(names)]):
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        found.append(
            (choice["finish_reason"], choice["token_ids"], choice["text"], choice["logprobs"]["tokens"])
        )
    return found


def test_recovered_answers_equal_those_without_a_refusal(engine: Engine) -> None:
    count = 24
    plans = [PLANS[n % len(PLANS)] if n % 3 else "" for n in range(count)]
    expected = answers(engine, [f"calm-{n}" for n in range(count)])
    before = engine.metric(RECOVERIES)
    found = answers(engine, [f"refuse-{p}-end-{n}" if p else f"also-{n}" for n, p in enumerate(plans)])
    different = [n for n in range(count) if found[n] != expected[n]]
    assert different == [], [(plans[n], found[n], expected[n]) for n in different[:2]]
    assert engine.metric(RECOVERIES) - before == sum(len(plan.split("-")) for plan in plans if plan)
    assert engine.metric(STALE) == 0
    assert engine.metric(REJECTS) == 0


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": "toy",
        "messages": [{"role": "user", "content": "Tell me about ann."}],
        "max_tokens": 60,
        "temperature": 1.0,
        **more,
    }


def structured(number: int = 1) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "p", "schema": schema_of(number, "x")},
        }
    }


def responses(name: str, **more: Any) -> dict[str, Any]:
    """Return a request of the Responses API, which takes its id from the body."""
    text = {"format": {"type": "json_schema", "name": "p", "schema": schema_of(1, "x")}}
    body = {"model": "toy", "input": "Tell me about ann.", "max_output_tokens": 60, "text": text}
    return {**body, "request_id": name, **more}


def assert_error(found: Mapping[str, Any], kind: str, name: str) -> None:
    assert (found["type"], found["code"], found["param"]) == (kind, kind, None), found
    assert name in found["request_id"], found
    assert len(found["message"]) > 20


def events(response: httpx.Response) -> list[str]:
    assert response.status_code == 200
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def test_a_reject_ends_only_its_request_and_says_so_on_every_endpoint(engine: Engine) -> None:
    rejects = engine.metric(REJECTS)
    whole = [
        ("/v1/chat/completions", chat(**structured()), "refuse-all-end-chat"),
        ("/v1/completions", greedy(1), "refuse-all-end-text"),
        ("/v1/responses", responses("refuse-all-end-resp"), "refuse-all-end-resp"),
        ("/v1/chat/completions", chat(**structured(), n=2), "refuse-3-5-7-9-end-n"),
    ]
    streams = [
        ("/v1/chat/completions", chat(**structured(), stream=True), "refuse-3-5-7-9-end-chat"),
        ("/v1/completions", {**greedy(1), "stream": True}, "refuse-all-end-text-stream"),
        ("/v1/responses", responses("refuse-all-end-resp-stream", stream=True), "refuse-all-end-resp-stream"),
    ]
    bystanders = [
        ("/v1/chat/completions", chat(**structured(2)), "bystander"),
        ("/v1/completions", greedy(3), "bystander-plain"),
    ]
    found = ask(engine, [*whole, *streams, *bystanders])
    for (path, _, name), response in zip(whole, found, strict=False):
        assert response.status_code == 500, (path, response.text)
        assert_error(response.json()["error"], "grammar_rejected", name)
    chat_events, text_events, responses_events = (events(response) for response in found[4:7])
    for stream, name in ((chat_events, streams[0][2]), (text_events, streams[1][2])):
        assert stream[-1] == "[DONE]"
        assert_error(json.loads(stream[-2])["error"], "grammar_rejected", name)
    last = json.loads(responses_events[-1])
    assert (last["type"], last["code"]) == ("error", "grammar_rejected")
    assert_error(last["error"], "grammar_rejected", streams[2][2])
    assert [response.status_code for response in found[7:]] == [200, 200]
    assert engine.metric(REJECTS) - rejects == 8
    assert "rolled back 3 times" in found[0].json()["error"]["message"]
    assert engine.metric(STALE) == 0


def test_a_seeded_answer_is_the_same_or_fails(engine: Engine) -> None:
    body = chat(**structured(), seed=11)
    path = "/v1/chat/completions"
    calm, first, later = ask(
        engine, [(path, body, "calm"), (path, body, "refuse-1-end"), (path, body, "refuse-4-end")]
    )
    assert first.json()["choices"] == calm.json()["choices"]
    assert_error(later.json()["error"], "grammar_rejected", "refuse-4-end")


def test_the_schemas_own_faults_are_400_with_their_types(engine: Engine) -> None:
    path = "/v1/chat/completions"
    dead = {"structured_outputs": {"json": DEAD_END}}
    unsupported = {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}
    broken = {"structured_outputs": {"grammar": "root ::= ("}}
    asked = [
        (path, chat(**dead), "dead"),
        (path, chat(**unsupported), "unsupported"),
        (path, chat(**broken), "broken"),
        (path, chat(**dead, stream=True), "dead-stream"),
        (path, chat(**unsupported, stream=True), "unsupported-stream"),
        (path, chat(**structured(3)), "bystander"),
    ]
    kinds = ("grammar_dead_end", "grammar_unsupported", "grammar_compile_failed")
    found = ask(engine, asked)
    for (_, _, name), kind, response in zip(asked, kinds, found, strict=False):
        assert response.status_code == 400, response.text
        assert_error(response.json()["error"], kind, name)
    dead_events = events(found[3])
    assert dead_events[-1] == "[DONE]"
    assert_error(json.loads(dead_events[-2])["error"], "grammar_dead_end", "dead-stream")
    refused = found[4]
    error = (
        refused.json()["error"] if refused.status_code == 400 else json.loads(events(refused)[-2])["error"]
    )
    assert (error["type"], error["code"]) == ("grammar_unsupported", "grammar_unsupported")
    assert found[5].status_code == 200
    assert engine.metric("structuredllm_engine_grammar_failures_total") >= 2
