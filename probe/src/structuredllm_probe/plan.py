"""The requests of a burst, in the order they are sent. Pure: no clock, no randomness but the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structuredllm_probe.config import BurstConfig
from structuredllm_probe.schemas import schema_for, tag_of

_PLAIN_TOKENS = 32


@dataclass(frozen=True)
class PlannedRequest:
    """One request to /v1/chat/completions. `schema` is None for a plain one."""

    index: int
    schema: Mapping[str, Any] | None
    streamed: bool
    body: Mapping[str, Any]


def plan_burst(model: str, config: BurstConfig) -> tuple[PlannedRequest, ...]:
    """Return `config.requests` requests; plain and streamed ones are spread evenly.

    The first request is always structured. Of the structured and of the plain requests alike the share
    `stream_share` is streamed.
    """
    planned = []
    counts = {True: 0, False: 0}
    for index in range(config.requests):
        structured = not _hits(index, config.plain_share)
        streamed = _hits(counts[structured], config.stream_share)
        counts[structured] += 1
        schema = schema_for(config.seed, index) if structured else None
        body = _body(model, config, index, schema, streamed=streamed)
        planned.append(PlannedRequest(index, schema, streamed, body))
    return tuple(planned)


def _hits(position: int, share: float) -> bool:
    return int((position + 1) * share) > int(position * share)


def _body(
    model: str, config: BurstConfig, index: int, schema: Mapping[str, Any] | None, *, streamed: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": _prompt(config.seed, index, schema)}],
        "seed": tag_of(config.seed, index),
        # Not greedy: a greedy model with random weights can repeat one legal token (a space) up to the limit.
        "temperature": 1.0,
        "stream": streamed,
        "max_tokens": config.max_tokens if schema is not None else min(_PLAIN_TOKENS, config.max_tokens),
    }
    if schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": f"probe_{index}", "strict": True, "schema": schema},
        }
    return body


def _prompt(seed: str, index: int, schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return f"Request {seed}-{index}: write one short sentence about the weather."
    names = ", ".join(schema["properties"])
    return f"Request {seed}-{index}: answer with a JSON object that has exactly the keys {names}."
