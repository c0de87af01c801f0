"""Requests whose end is special, and plain requests beside structured ones, for a running engine."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema_rs

from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME
from tests.engine.traffic import REQUEST_TIMEOUT_SECONDS, Answer, schema_of

SHORT: dict[str, Any] = {"type": "boolean"}
END = 2
"""The toy model's end token."""


@dataclass(frozen=True)
class Ending:
    """A request whose end is special.

    Attributes:
        name: what is special.
        sampling: the parameters that make it so.
        schema: its constraint.
    """

    name: str
    sampling: dict[str, Any]
    schema: dict[str, Any]


def endings(seed: str) -> list[Ending]:
    """Return all kinds of ends, each with a short and with a longer schema."""
    kinds: dict[str, dict[str, Any]] = {
        "extra special stop id": {"stop_token_ids": [0, 1]},
        "extra stop id that is legal in strings": {"stop_token_ids": [83]},
        "min_tokens beyond the answer": {"min_tokens": 100},
        "ignore_eos": {"ignore_eos": True},
        "ignore_eos and min_tokens": {"ignore_eos": True, "min_tokens": 100},
        "ignore_eos and an extra stop id": {"ignore_eos": True, "stop_token_ids": [0]},
        "three answers": {"n": 3, "ignore_eos": True},
        "end token shown": {"skip_special_tokens": False, "min_tokens": 60},
        "greedy": {"temperature": 0, "ignore_eos": True, "min_tokens": 60},
    }
    return [
        Ending(name, sampling, schema)
        for number, (name, sampling) in enumerate(kinds.items())
        for schema in (SHORT, schema_of(number, seed))
    ]


def ask_endings(url: str, seed: str) -> dict[str, list[str]]:
    """Send all of them at once; return what is wrong, by the name of the ending (nothing: no entry)."""
    return asyncio.run(_ask_endings(url, endings(seed)))


async def _ask_endings(url: str, asked: list[Ending]) -> dict[str, list[str]]:
    async with engine_client(url, seconds=REQUEST_TIMEOUT_SECONDS) as client:
        found = await asyncio.gather(*(_ask(client, number, ending) for number, ending in enumerate(asked)))
    wrong: dict[str, list[str]] = {}
    for ending, faults in zip(asked, found, strict=True):
        if faults:
            wrong.setdefault(ending.name, []).extend(faults)
    return wrong


async def _ask(client: httpx.AsyncClient, number: int, ending: Ending) -> list[str]:
    body = {
        "model": MODEL_NAME,
        "prompt": f"Person {number} says",
        "max_tokens": 150,
        "temperature": 1.0,
        "seed": number,
        "structured_outputs": {"json": ending.schema},
        "return_token_ids": True,
        **ending.sampling,
    }
    response = await client.post("/v1/completions", json=body)
    if response.status_code != 200:
        return [f"{response.status_code} {response.text[:200]}"]
    return [fault for choice in response.json()["choices"] if (fault := _fault(choice, ending))]


def _fault(choice: dict[str, Any], ending: Ending) -> str:
    """Return what is wrong with one answer; empty when nothing is."""
    text, tokens = choice["text"], choice["token_ids"]
    stops = {END, *ending.sampling.get("stop_token_ids", ())}
    try:
        valid = jsonschema_rs.is_valid(ending.schema, json.loads(text))
    except json.JSONDecodeError:
        valid = False
    if not valid:
        return f"{text[:80]!r} (finished by {choice['finish_reason']})"
    if choice["finish_reason"] != "stop" or tokens[-1] not in stops or stops.intersection(tokens[:-1]):
        return f"finished by {choice['finish_reason']}, tokens {tokens}"
    return ""


def plain_answers(url: str, *, beside: int, seed: str, requests: int = 16) -> list[Answer]:
    """Return greedy answers to plain requests, sent together with `beside` structured ones.

    The structured ones have a new schema each and start all through the plain ones' time.
    """
    return asyncio.run(_plain_answers(url, beside, seed, requests))


async def _plain_answers(url: str, beside: int, seed: str, requests: int) -> list[Answer]:
    async with engine_client(url, seconds=REQUEST_TIMEOUT_SECONDS) as client:
        guided = [asyncio.create_task(_guided(client, number, seed)) for number in range(beside)]
        answers = await asyncio.gather(*(_plain(client, number) for number in range(requests)))
        await asyncio.gather(*guided)
    return answers


async def _guided(client: httpx.AsyncClient, number: int, seed: str) -> None:
    await asyncio.sleep(0.05 * number)
    body = {
        "model": MODEL_NAME,
        "prompt": f"Tell me about person {number}. " + "word " * (number * 11 % 70),
        "max_tokens": 60,
        "seed": number,
        "structured_outputs": {"json": schema_of(number, seed)},
    }
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text


async def _plain(client: httpx.AsyncClient, number: int) -> Answer:
    body = {
        "model": MODEL_NAME,
        "prompt": f"Plain question {number}. " + "word " * (number * 13 % 80),
        "max_tokens": 40,
        "temperature": 0,
        "return_token_ids": True,
    }
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return Answer(False, choice["finish_reason"], tuple(choice["token_ids"]), choice["text"])
