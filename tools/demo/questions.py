"""Part 3's questions: what is asked of the real model, through the official OpenAI client.

Owns the questions, their schemas and the verdict on each answer (our own check, beside the gateway's).
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from openai import OpenAI

TIMEOUT_SECONDS = 120.0
MAX_TOKENS = 96


@dataclass(frozen=True)
class Question:
    """One extraction task: the text, the JSON Schema that the answer must obey, and whether to stream."""

    text: str
    schema: dict[str, Any]
    stream: bool = False


@dataclass(frozen=True)
class Answer:
    """What came back: the text, our verdict (`valid` or why not), the gateway's outcome, seconds taken."""

    question: Question
    text: str
    verdict: str
    outcome: str
    seconds: float
    chunks: int


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


QUESTIONS: tuple[Question, ...] = (
    Question(
        text="Extract the facts: 'Lima, the capital of Peru, has about 10 million inhabitants.'",
        schema=_object(
            city={"type": "string", "maxLength": 24},
            country={"type": "string", "maxLength": 24},
            population_millions={"type": "integer", "minimum": 0, "maximum": 100},
        ),
    ),
    Question(
        text="Extract the order: 'Please send 3 large blue shirts to Ana Silva.'",
        schema=_object(
            customer={"type": "string", "maxLength": 24},
            item={"type": "string", "maxLength": 24},
            colour={"enum": ["red", "green", "blue"]},
            quantity={"type": "integer", "minimum": 1, "maximum": 99},
        ),
        stream=True,
    ),
    Question(
        text="Classify the ticket: 'The server in rack 7 is down since 04:10, customers see errors.'",
        schema=_object(
            severity={"enum": ["low", "medium", "high"]},
            component={"type": "string", "maxLength": 24},
            customer_visible={"type": "boolean"},
        ),
    ),
)


def judge(text: str, schema: dict[str, Any]) -> str:
    """Return `valid`, or what is wrong with `text` as an answer for `schema`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    try:
        jsonschema_rs.validate(schema, value)
    except jsonschema_rs.ValidationError as error:
        return f"schema violation: {error.message}"
    return "valid"


def ask(
    client: OpenAI, model: str, question: Question, clock: Callable[[], float] = time.monotonic
) -> Answer:
    """Ask one question at temperature 0; errors of the client are raised as they are."""
    began = clock()
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{question.text} Answer as JSON."}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": question.schema},
        },
    }
    chunks = 0
    if question.stream:
        parts: list[str] = []
        with client.chat.completions.with_streaming_response.create(**request, stream=True) as raw:
            outcome = "streamed"
            for chunk in raw.parse():
                chunks += 1
                if chunk.choices and chunk.choices[0].delta.content:
                    parts.append(chunk.choices[0].delta.content)
        text = "".join(parts)
    else:
        response = client.chat.completions.with_raw_response.create(**request)
        outcome = response.headers.get("x-structuredllm-outcome", "")
        text = response.parse().choices[0].message.content or ""
    return Answer(question, text, judge(text, question.schema), outcome, clock() - began, chunks)


def ask_all(gateway: str, model: str) -> list[Answer]:
    """Ask every question through the gateway at `gateway` (a base URL without /v1)."""
    with OpenAI(base_url=f"{gateway}/v1", api_key="none", timeout=TIMEOUT_SECONDS, max_retries=0) as client:
        return [ask(client, model, question) for question in QUESTIONS]
