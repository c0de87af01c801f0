"""The ways to ask for structure: what a request says, what is a right answer, and where answers carry it.

Owns one table, `WAYS`; a new way to ask is one entry. Must not import the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.gateway_soak.carriers import TOOL, Carrier, ChatText, CompletionText, ResponseText, ToolCall
from tests.gateway_soak.schemas import Sample, TextSample, choice_sample, regex_sample, sample

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@dataclass(frozen=True)
class Way:
    """One way to ask.

    Attributes:
        name: in the report.
        path: of the route.
        carrier: where its answers have their text.
        ask: the fields that ask for a schema.
        make: what to ask for; by default any schema.
    """

    name: str
    path: str
    carrier: Carrier
    ask: Callable[[Any], Mapping[str, Any]]
    make: Callable[[Random], Sample | TextSample] = sample

    @property
    def has_choices(self) -> bool:
        """Whether its answers have choices, and more than one if asked to."""
        return self.path != RESPONSES

    def request(self, asked: Sample | TextSample, case: int) -> dict[str, Any]:
        """Return the body of a request that the scripted engine knows as `case`."""
        prompt = f"case-{case}-"
        fields = {COMPLETIONS: "prompt", RESPONSES: "input"}
        said: dict[str, Any] = {fields.get(self.path, "messages"): prompt}
        if self.path == CHAT:
            said = {"messages": [{"role": "user", "content": prompt}]}
        return {"model": "toy", **said, **self.ask(asked.schema)}


def _any_object(rng: Random) -> Sample:
    return Sample({"type": "object"}, sample(rng).value)


def _tool(schema: Mapping[str, Any], choice: Any, **more: Any) -> Mapping[str, Any]:
    tool = {"type": "function", "function": {"name": TOOL, "parameters": schema, **more}}
    return {"tools": [tool], "tool_choice": choice}


def _format(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    wrapper = {"name": "x", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wrapper}}


WAYS: tuple[Way, ...] = (
    Way("response_format", CHAT, ChatText(), _format),
    Way("response_format", COMPLETIONS, CompletionText(), _format),
    Way("structured_outputs", CHAT, ChatText(), lambda schema: {"structured_outputs": {"json": schema}}),
    Way(
        "structured_outputs text",
        COMPLETIONS,
        CompletionText(),
        lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    ),
    Way("guided_json", CHAT, ChatText(), lambda schema: {"guided_json": schema}),
    Way(
        "json_object",
        CHAT,
        ChatText(),
        lambda _schema: {"response_format": {"type": "json_object"}},
        _any_object,
    ),
    Way("tool required", CHAT, ToolCall(), lambda schema: _tool(schema, "required")),
    Way(
        "tool named",
        CHAT,
        ToolCall(),
        lambda schema: _tool(schema, {"type": "function", "function": {"name": TOOL}}),
    ),
    Way("tool strict", CHAT, ToolCall(), lambda schema: _tool(schema, "auto", strict=True)),
    Way("regex", CHAT, ChatText(), lambda regex: {"structured_outputs": {"regex": regex}}, regex_sample),
    Way(
        "choice",
        COMPLETIONS,
        CompletionText(),
        lambda words: {"structured_outputs": {"choice": words}},
        choice_sample,
    ),
    Way("guided_choice", CHAT, ChatText(), lambda words: {"guided_choice": words}, choice_sample),
    Way(
        "text.format",
        RESPONSES,
        ResponseText(),
        lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
    ),
)
