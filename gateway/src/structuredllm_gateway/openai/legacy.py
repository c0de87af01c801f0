"""Ways to ask for a structure that today's engines ignore, turned into ways that they do not.

Owns the mapping: of the `guided_*` fields of older vLLM versions, and of `text.format` of type json_object,
which vLLM's responses API takes and drops. Without it an answer would come without any structure and nobody
would be told. Pure: must not import I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from structuredllm_gateway.errors import RequestError
from structuredllm_gateway.openai.surface import Route

_MAPPED: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structural_tag": "structural_tag",
}
# The backend has been a setting of the engine since vLLM's second engine; no request can choose it.
_DROPPED = ("guided_decoding_backend", "guided_decoding")


_ANY_OBJECT_FORMAT: Mapping[str, Any] = {
    "type": "json_schema",
    "name": "json_object",
    "schema": {"type": "object"},
}


@dataclass(frozen=True)
class Mapped:
    """A body without ignored ways to ask.

    Attributes:
        body: the given one when it has none.
        warnings: one clause for each that was mapped.
        places: JSON pointer of the legacy field, by the field of `structured_outputs` it became.
    """

    body: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)


def map_ignored_fields(body: Mapping[str, Any], route: Route) -> Mapped:
    """Map what engines would ignore in a body; a field that is null or false counts as not given.

    Raises:
        RequestError: a legacy field and `structured_outputs` ask for different things.
    """
    mapped = [name for name in _MAPPED if body.get(name) is not None and body[name] is not False]
    dropped = [name for name in _DROPPED if body.get(name) is not None]
    is_any_object = route is Route.RESPONSES and _asks_for_any_object(body.get("text"))
    if not mapped and not dropped and not is_any_object:
        return Mapped(body)
    outputs = body.get("structured_outputs")
    if outputs is not None and not isinstance(outputs, dict):
        raise RequestError("`structured_outputs` must be an object.", param="structured_outputs")
    merged: dict[str, Any] = dict(outputs or {})
    places: dict[str, str] = {}
    for name in mapped:
        target, value = _MAPPED[name], body[name]
        if merged.get(target) not in (None, value):
            raise RequestError(
                f"The request asks for two different structures, at /structured_outputs/{target} and at "
                f"/{name}; ask for one, in structured_outputs.",
                param=f"/{name}",
            )
        merged[target] = value
        places[target] = f"/{name}"
    kept = {name: value for name, value in body.items() if name not in _MAPPED and name not in _DROPPED}
    if merged:
        kept["structured_outputs"] = merged
    warnings = [f"{name} is deprecated: sent on as structured_outputs.{_MAPPED[name]}" for name in mapped]
    warnings += [f"{name} is ignored: the backend is a setting of the engine" for name in dropped]
    if is_any_object:
        kept["text"] = {**body["text"], "format": _ANY_OBJECT_FORMAT}
        warnings.append("text.format json_object is sent on as a json_schema of any object")
    return Mapped(kept, tuple(warnings), places)


def _asks_for_any_object(text: Any) -> bool:
    wanted = text.get("format") if isinstance(text, dict) else None
    return isinstance(wanted, dict) and wanted.get("type") == "json_object"


def rewritten_body(body: bytes, route: Route) -> bytes:
    """Return the body's bytes with its ignored fields mapped; numbers keep every digit.

    Raises:
        RequestError: nested too deep to be read and written again, or as `map_ignored_fields`.
    """
    try:
        whole = map_ignored_fields(json.loads(body), route).body
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise RequestError(
            f"The request has guided_* fields and cannot be rewritten ({type(error).__name__}); use "
            "structured_outputs.",
            param="structured_outputs",
        ) from error
