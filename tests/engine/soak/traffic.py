"""Send one burst of a plan and say what became of each request."""

import asyncio
import collections
import json
from collections.abc import Sequence
from typing import Any

import httpx
import jsonschema_rs

from tests.engine.client import engine_client
from tests.engine.engine_process import MODEL_NAME
from tests.engine.soak.plan import MAX_TOKENS, Planned

HANG_SECONDS = 120.0
PLAIN_TOKENS = 40


def send_burst(url: str, burst: Sequence[Planned]) -> collections.Counter[str]:
    """Send all at once; return how often each result occurred: `valid`, `plain`, `left`, or what went
    wrong."""
    return collections.Counter(asyncio.run(_send_burst(url, burst)))


async def _send_burst(url: str, burst: Sequence[Planned]) -> list[str]:
    async with engine_client(url, seconds=HANG_SECONDS) as client:
        return await asyncio.gather(*(_send(client, planned) for planned in burst))


async def _send(client: httpx.AsyncClient, planned: Planned) -> str:
    try:
        async with asyncio.timeout(planned.leave_after or HANG_SECONDS):
            response = await client.post("/v1/chat/completions", json=_body(planned))
    except TimeoutError:
        return "hang" if planned.leave_after is None else "left"
    except httpx.TimeoutException:
        return "hang"
    except httpx.TransportError as error:
        return f"{planned.kind}: {type(error).__name__}"
    result = _judge(planned, response)
    # One that was to leave may have got its whole answer first: it is judged, but does not count.
    return "left" if result == "valid" and planned.leave_after is not None else result


def _body(planned: Planned) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": [
            {"role": "user", "content": f"Describe item {planned.number}. " + "word " * planned.words}
        ],
        "max_tokens": PLAIN_TOKENS if planned.schema is None else MAX_TOKENS,
        "temperature": 1.0,
        "seed": planned.number,
        "stream": planned.stream,
    }
    if planned.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": f"s{planned.number}", "schema": planned.schema},
        }
    return body


def _judge(planned: Planned, response: httpx.Response) -> str:
    if response.status_code != 200:
        return f"{planned.kind}: {response.status_code} {response.text[:200]}"
    error, text, finish = _stream(response.text) if planned.stream else _whole(response.json())
    if error is not None:
        return f"{planned.kind}: {json.dumps(error)[:200]}"
    if planned.schema is None:
        return "plain" if finish in ("stop", "length") else f"plain: finished by {finish}"
    if finish != "stop":
        return f"{planned.kind}: finished by {finish}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return f"{planned.kind}: not JSON"
    if not jsonschema_rs.is_valid(planned.schema, value):
        return f"{planned.kind}: breaks its schema"
    return "valid"


def _whole(body: dict[str, Any]) -> tuple[Any, str, str | None]:
    choice = body["choices"][0]
    return None, choice["message"]["content"] or "", choice["finish_reason"]


def _stream(text: str) -> tuple[Any, str, str | None]:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        return "the stream has no end", "", None
    parts: list[str] = []
    finish: str | None = None
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            return chunk["error"], "", None
        for choice in chunk["choices"]:
            parts.append(choice["delta"].get("content") or "")
            finish = choice["finish_reason"] or finish
    return None, "".join(parts), finish
