"""Bursts of cold structured requests mixed with plain ones, and what became of each."""

import asyncio
import collections
import json
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema_rs

from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME

REQUEST_TIMEOUT_SECONDS = 240.0
ANONYMOUS_REJECT = {
    "message": "Internal server error",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
"""What an engine without the patches says of a reject."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request: `valid`, `plain`, `rejected`, or a description of anything else."""

    structured: bool
    stream: bool
    result: str


def schema_of(number: int, seed: str) -> dict[str, Any]:
    """Return a schema that no engine has seen before, whose answers are short."""
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": ["ann", "bob", f"{seed}{number}"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "ok": {"type": "boolean"},
            "why": {"type": "string", "pattern": "^[a-z ]{1,20}$"},
        },
        "required": ["name", "age", "ok", "why"],
        "additionalProperties": False,
    }


def burst(url: str, *, requests: int, seed: str, plain_every: int = 4) -> list[Outcome]:
    """Send `requests` chat completions at once: each `plain_every`-th is plain, every second one is
    streamed."""
    return asyncio.run(_burst(url, requests, seed, plain_every))


def summary(outcomes: list[Outcome]) -> dict[str, int]:
    """Return how often each result occurred."""
    return dict(collections.Counter(outcome.result for outcome in outcomes))


async def _burst(url: str, requests: int, seed: str, plain_every: int) -> list[Outcome]:
    async with engine_client(url, seconds=REQUEST_TIMEOUT_SECONDS) as client:
        return await asyncio.gather(
            *(
                _one(client, n, seed, structured=n % plain_every != 0, stream=n % 2 == 1)
                for n in range(requests)
            )
        )


async def _one(
    client: httpx.AsyncClient, number: int, seed: str, *, structured: bool, stream: bool
) -> Outcome:
    schema = schema_of(number, seed)
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": [
            {"role": "user", "content": f"Describe person {number}. " + "word " * (number * 7 % 60)}
        ],
        "max_tokens": 120 if structured else 40,
        "temperature": 1.0,
        "seed": number,
        "stream": stream,
    }
    if structured:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": f"p{number}", "schema": schema},
        }
    response = await client.post("/v1/chat/completions", json=body)
    error, text, finish = _read_stream(response.text) if stream else _read_answer(response)
    return Outcome(
        structured, stream, _classify(response.status_code, error, text, finish, schema, structured)
    )


def is_reject(error: Any) -> bool:
    """Tell whether an engine's error object means a grammar reject, with or without the patches."""
    return error == ANONYMOUS_REJECT or (isinstance(error, dict) and error.get("type") == "grammar_rejected")


def _classify(
    status: int, error: Any, text: str, finish: str | None, schema: dict[str, Any], structured: bool
) -> str:
    if is_reject(error):
        return "rejected"
    if error is not None or status != 200:
        return f"{status} {error}"
    if not structured:
        return "plain" if finish in ("stop", "length") else f"plain finished by {finish}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return f"not JSON: {text[:60]!r} (finished by {finish})"
    if not jsonschema_rs.is_valid(schema, value):
        return f"breaks its schema: {text[:60]!r}"
    return "valid"


def _read_answer(response: httpx.Response) -> tuple[Any, str, str | None]:
    body = response.json()
    if "error" in body:
        return body["error"], "", None
    choice = body["choices"][0]
    return None, choice["message"]["content"] or "", choice["finish_reason"]


def _read_stream(text: str) -> tuple[Any, str, str | None]:
    parts: list[str] = []
    finish: str | None = None
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1:] == ["[DONE]"] or text.startswith("{"), text[-200:]
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            return chunk["error"], "", None
        for choice in chunk["choices"]:
            parts.append(choice["delta"].get("content") or "")
            finish = choice["finish_reason"] or finish
    return None, "".join(parts), finish


@dataclass(frozen=True)
class Answer:
    """Token ids and text of one completion at temperature 0."""

    structured: bool
    finish_reason: str
    token_ids: tuple[int, ...]
    text: str


def greedy_answers(url: str, *, requests: int = 30) -> list[Answer]:
    """Return the answers to a fixed set of requests, sent staggered so that prefills and decodes share
    batches."""
    return asyncio.run(_greedy_answers(url, requests))


async def _greedy_answers(url: str, requests: int) -> list[Answer]:
    async with engine_client(url, seconds=REQUEST_TIMEOUT_SECONDS) as client:
        return await asyncio.gather(*(_greedy(client, n) for n in range(requests)))


async def _greedy(client: httpx.AsyncClient, number: int) -> Answer:
    structured = number % 3 != 0
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "prompt": f"Tell me about person {number}. " + "word " * (number * 7 % 90),
        "max_tokens": 40,
        "temperature": 0,
        "return_token_ids": True,
    }
    if structured:
        body["structured_outputs"] = {"json": schema_of(number, "c")}
    await asyncio.sleep(0.02 * (number % 5))
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return Answer(structured, choice["finish_reason"], tuple(choice["token_ids"]), choice["text"])
