"""A fixed set of requests whose token ids must not depend on how they were scheduled, and its answers.

Owns the requests, sending them, and comparing two sets of answers. It knows nothing of engines but a URL.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME
from tests.engine.traffic import REQUEST_TIMEOUT_SECONDS, schema_of

LOGPROB_TOLERANCE = 1e-3
"""Far above float32's rounding, far below what another token history does to a log-probability."""

PREFIX = "The night shift measures the harbour map near the river, said person 7. " * 6


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: unique; begins with the name of its group.
        body: of POST /v1/completions.
        wave: waves are sent one after the other, each when the one before has ended.
        delay: seconds after the wave's begin.
        leave_after: stream events after which the client goes away; None for one that stays.
        schema: what the answer is constrained by; None for a plain request.
    """

    name: str
    body: dict[str, Any]
    wave: int = 0
    delay: float = 0.0
    leave_after: int | None = None
    schema: dict[str, Any] | None = None


@dataclass
class Choice:
    """What a request got under one index; `finish_reason` is None if the client left before the end."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Answer:
    """All choices of a request, by index."""

    choices: tuple[Choice, ...]
    prompt_tokens: int = 0


def cases() -> list[Case]:
    """Return the set: greedy, seeded, long prompts, shared prefixes, n = 3, logprobs, clients that leave.

    Structured and plain ones alternate in every group, and all groups are in flight together, so that batches
    are mixed.
    """
    found = [
        *(_case(f"greedy-{n}", n, structured=n % 3 != 0, words=n * 7 % 20) for n in range(18)),
        *(_case(f"seeded-{n}", n, structured=n % 2 == 0, words=n * 5 % 20, **_seeded(n)) for n in range(12)),
        *(
            _case(f"long-{n}", n, structured=n % 2 == 0, words=60 + 12 * n, **(_seeded(n) if n >= 3 else {}))
            for n in range(6)
        ),
        *(
            _case(
                f"prefix-{n}", n, structured=n % 2 == 0, prefix=PREFIX, wave=n // 4, **_seeded(n, n % 4 > 1)
            )
            for n in range(8)
        ),
        *(_case(f"three-{n}", n, structured=n % 2 == 0, words=8 * n, n=3, **_seeded(n)) for n in range(4)),
        *(
            _case(f"logprobs-{n}", n, structured=n % 2 == 0, words=9 * n, logprobs=3, **_seeded(n, n > 3))
            for n in range(6)
        ),
        *(
            _case(f"leaver-{n}", n, structured=n % 3 != 0, words=n, leave_after=2 + 3 * n, wave=n % 2)
            for n in range(8)
        ),
    ]
    assert len({case.name for case in found}) == len(found)
    return found


def _seeded(number: int, seeded: bool = True) -> dict[str, Any]:
    if not seeded:
        return {}
    filters: tuple[dict[str, Any], ...] = ({}, {"top_p": 0.9}, {"top_k": 50})
    return {"temperature": 0.9, "seed": 1000 + number, **filters[number % 3]}


def _case(
    name: str,
    number: int,
    *,
    structured: bool,
    words: int = 0,
    prefix: str = "",
    wave: int = 0,
    leave_after: int | None = None,
    **sampling: Any,
) -> Case:
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "prompt": f"{prefix}Tell me about person {number}. " + "word " * words,
        "max_tokens": 100 if structured else 60,
        "temperature": 0,
        "return_token_ids": True,
        **sampling,
    }
    schema = schema_of(number, name) if structured else None
    if schema is not None:
        body["structured_outputs"] = {"json": schema}
    return Case(name, body, wave, 0.03 * (number % 6), leave_after, schema)


def answers_of(url: str, wanted: Sequence[Case], *, leaving: bool) -> dict[str, Answer]:
    """Send the requests; return the answers by name.

    Args:
        url: the engine's.
        wanted: the requests.
        leaving: False has every client stay, for the answers to compare with.
    """
    return asyncio.run(_answers(url, wanted, leaving))


async def _answers(url: str, wanted: Sequence[Case], leaving: bool) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    async with engine_client(url, seconds=REQUEST_TIMEOUT_SECONDS) as client:
        for wave in sorted({case.wave for case in wanted}):
            sent = [case for case in wanted if case.wave == wave]
            got = await asyncio.gather(*(_send(client, case, leaving) for case in sent))
            found.update(zip((case.name for case in sent), got, strict=True))
    return found


async def _send(client: httpx.AsyncClient, case: Case, leaving: bool) -> Answer:
    await asyncio.sleep(case.delay)
    if leaving and case.leave_after is not None:
        return await _begin_and_leave(client, case, case.leave_after)
    response = await client.post("/v1/completions", json=case.body)
    assert response.status_code == 200, f"{case.name}: {response.text}"
    body = response.json()
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    return Answer(tuple(_choice(choice) for choice in choices), int(body["usage"]["prompt_tokens"]))


def _choice(choice: Mapping[str, Any]) -> Choice:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return Choice(list(choice["token_ids"]), list(logprobs), choice["finish_reason"], choice["text"])


async def _begin_and_leave(client: httpx.AsyncClient, case: Case, events: int) -> Answer:
    got = Choice()
    async with client.stream("POST", "/v1/completions", json={**case.body, "stream": True}) as response:
        assert response.status_code == 200, f"{case.name}: {response.status_code}"
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, f"{case.name}: {event}"
            for choice in event["choices"]:
                got.token_ids += choice["token_ids"] or []
                got.text += choice["text"]
                got.finish_reason = choice["finish_reason"] or got.finish_reason
            events -= 1
            if events <= 0:
                break
    return Answer((got,))


def differences(got: Mapping[str, Answer], expected: Mapping[str, Answer]) -> list[str]:
    """Return, one line each, in what `got` is not what was expected.

    A client that left must have got the beginning of the expected tokens.
    """
    found = [f"{name}: no answer" for name in expected if name not in got]
    for name, answer in got.items():
        wanted = expected[name]
        if len(answer.choices) != len(wanted.choices):
            found.append(f"{name}: {len(answer.choices)} choices instead of {len(wanted.choices)}")
            continue
        for index, (one, other) in enumerate(zip(answer.choices, wanted.choices, strict=True)):
            found += (f"{name}[{index}]: {what}" for what in _different(one, other))
    return found


def _different(got: Choice, expected: Choice) -> list[str]:
    if got.finish_reason is None:
        expected = Choice(expected.token_ids[: len(got.token_ids)], [], None, got.text)
    if got.token_ids != expected.token_ids:
        at = next(
            (
                i
                for i, pair in enumerate(zip(got.token_ids, expected.token_ids, strict=False))
                if len({*pair}) > 1
            ),
            min(len(got.token_ids), len(expected.token_ids)),
        )
        ours, theirs = got.token_ids[at : at + 4], expected.token_ids[at : at + 4]
        return [
            f"tokens differ from {at}: {ours} instead of {theirs} ({got.text!r} instead of {expected.text!r})"
        ]
    found = []
    if got.finish_reason != expected.finish_reason:
        found.append(f"finished by {got.finish_reason} instead of {expected.finish_reason}")
    if len(got.logprobs) != len(expected.logprobs):
        found.append(f"{len(got.logprobs)} log-probabilities instead of {len(expected.logprobs)}")
    elif got.logprobs:
        apart = max(abs(a - b) for a, b in zip(got.logprobs, expected.logprobs, strict=True))
        if apart > LOGPROB_TOLERANCE:
            found.append(f"log-probabilities differ by {apart:.4f}")
    return found
