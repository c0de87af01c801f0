"""The few fields of a request that the gateway reads; the body itself is forwarded as it came.

Owns the reading of model, stream and what is asked of the answer. Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from structuredllm_gateway.errors import RequestError
from structuredllm_gateway.openai.legacy import map_ignored_fields, rewritten_body
from structuredllm_gateway.openai.structures import Structure, requested_structure
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.openai.tools import ToolPlan, requested_tools
from structuredllm_gateway.validation import exact_json

__all__ = [
    "CompletionRequest",
    "Structure",
    "body_object",
    "parse_completion_request",
    "read_request",
    "requested_structure",
]


@dataclass(frozen=True)
class CompletionRequest:
    """What the gateway needs to know of a request.

    Attributes:
        model: the served model's name.
        stream: whether the answer is to be streamed.
        structure: what the text must be, None = nothing is asked of it.
        tools: the functions that may be called, None = none.
        choices: how many choices the answer must have.
        echoes: whether the answer repeats a part of the prompt, so that its text is not the model's alone.
        rewritten: the body to send on, when it differs from the one that came.
        warnings: what the client should be told, one clause each.
    """

    model: str
    stream: bool
    structure: Structure | None
    tools: ToolPlan | None = None
    choices: int = 1
    echoes: bool = False
    rewritten: bytes | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_structured(self) -> bool:
        """Whether anything is asked of the answer."""
        return self.structure is not None or (self.tools is not None and bool(self.tools.judged))


def parse_completion_request(
    body: bytes, route: Route = Route.CHAT, inspect: Callable[[Mapping[str, Any]], None] | None = None
) -> CompletionRequest:
    """Read a request body; `inspect` sees the whole of it before anything in it is looked at.

    Raises:
        RequestError: not a JSON object, no model, or a field of a wrong kind; `param` names it.
    """
    whole = body_object(body)
    if inspect is not None:
        inspect(whole)
    return read_request(body, whole, route)


def body_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a request.

    Raises:
        RequestError: the body is not one.
    """
    try:
        whole = exact_json.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The request body is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(whole, dict):
        raise RequestError("The request body must be a JSON object.", code="invalid_json")
    return whole


def read_request(body: bytes, whole: Mapping[str, Any], route: Route) -> CompletionRequest:
    """Read what is asked for in a request; `whole` is the JSON object of `body`.

    Raises:
        RequestError: no model, or a field of a wrong kind; `param` names it.
    """
    model = whole.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError(
            "The request names no model; set `model` to one that GET /v1/models lists.",
            param="model",
            code="missing_model",
        )
    if not route.generates:
        return CompletionRequest(model, stream=False, structure=None)
    stream = whole.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError("`stream` must be true or false.", param="stream")
    mapped = map_ignored_fields(whole, route)
    request = CompletionRequest(
        model,
        bool(stream),
        requested_structure(mapped.body, route, mapped.places),
        requested_tools(mapped.body, route),
        _choices(whole, route),
        whole.get("echo") is True,
        rewritten_body(body, route) if mapped.warnings else None,
        mapped.warnings,
    )
    _check_combinations(whole, request)
    return request


def _choices(body: Mapping[str, Any], route: Route) -> int:
    """Return how many choices are asked for; a wrong `n` is left to the engine to refuse."""
    n = body.get("n")
    each = n if isinstance(n, int) and n > 0 and route is not Route.RESPONSES else 1
    prompt = body.get("prompt")
    if route is Route.COMPLETIONS and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return each * len(prompt)
    return each


def _check_combinations(body: Mapping[str, Any], request: CompletionRequest) -> None:
    """Refuse what would make every answer wrong, or keep its verdict from being made."""
    if body.get("ignore_eos") is True and request.is_structured:
        raise RequestError(
            "`ignore_eos` makes the engine go on after the structure is complete; ask for one of the two.",
            param="ignore_eos",
        )
    if body.get("background") is True:
        raise RequestError(
            "`background` is not supported: the answer would have to be fetched from the one replica "
            "that has it.",
            param="background",
        )
