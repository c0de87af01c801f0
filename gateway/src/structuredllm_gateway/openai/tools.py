"""The tools of a request, and what their calls must satisfy.

Owns the reading of `tools` and `tool_choice` (chat nests a function's fields, the responses API does not).
Pure: must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from structuredllm_gateway.errors import RequestError
from structuredllm_gateway.openai.structures import ANY_OBJECT, Structure, of_schema
from structuredllm_gateway.openai.surface import Route


@dataclass(frozen=True)
class ToolPlan:
    """What a request lets or makes the model call.

    Attributes:
        known: the names of all functions.
        judged: structures of the arguments that must be right, by name: of `strict` functions, and of every
            one that may be called when a call is required.
        requires_call: whether an answer without a call is wrong (`tool_choice` required or a named function).
        only: the one function that may be called, when one is named.
    """

    known: frozenset[str]
    judged: Mapping[str, Structure] = field(default_factory=dict)
    requires_call: bool = False
    only: str | None = None


def requested_tools(body: Mapping[str, Any], route: Route) -> ToolPlan | None:
    """Return the plan of a request with functions to call; None when it has none or forbids calls.

    Raises:
        RequestError: `tools` or `tool_choice` has a wrong kind, or the named function is not there.
    """
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is None or choice == "none" or route is Route.COMPLETIONS:
        return None
    if not isinstance(tools, list):
        raise RequestError("`tools` must be a list.", param="tools")
    nested = route is Route.CHAT
    functions: dict[str, tuple[Mapping[str, Any], str]] = {}
    for position, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RequestError(
                f"The tool at /tools/{position} must be an object.", param=f"/tools/{position}"
            )
        function = tool.get("function") if nested else tool if tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            if nested:
                raise RequestError(
                    f"The tool at /tools/{position} needs a function with a name.", param=f"/tools/{position}"
                )
            continue  # the responses API has tools that are not functions
        functions[function["name"]] = (
            function,
            f"/tools/{position}{'/function' if nested else ''}/parameters",
        )
    required, only = _choice(choice, nested)
    if only is not None and only not in functions:
        raise RequestError(
            f"`tool_choice` names {only[:64]!r}, which is not in `tools`.", param="tool_choice"
        )
    judged = {
        name: of_schema(function.get("parameters"), place) or Structure(ANY_OBJECT, place)
        for name, (function, place) in functions.items()
        if (required and only in (None, name)) or function.get("strict") is True
    }
    return ToolPlan(frozenset(functions), judged, required, only)


def _choice(choice: Any, nested: bool) -> tuple[bool, str | None]:
    """Return whether a call is required, and of which function."""
    if choice is None or choice == "auto":
        return False, None
    if choice == "required":
        return True, None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools") if nested else choice
        mode = inner.get("mode") if isinstance(inner, dict) else None
        return mode == "required", None
    if isinstance(choice, dict) and choice.get("type", "function") == "function":
        function = choice.get("function") if nested else choice
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name:
            return True, name
    if isinstance(choice, dict) and not nested:
        return False, None  # a tool that is not a function: nothing of it can be judged
    raise RequestError(
        "`tool_choice` must be none, auto, required, or an object that names a function.", param="tool_choice"
    )
