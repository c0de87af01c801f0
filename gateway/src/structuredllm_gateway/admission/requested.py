"""Where a request body holds something that an engine compiles: schemas, expressions, grammars, choices.

Owns the list of those places, for every route and every way to ask, whether or not the answer is validated by
it. Pure: must not import I/O. Values of a wrong kind are left to the request parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import orjson

from structuredllm_gateway.admission.rules import pointer_part
from structuredllm_gateway.validation import exact_json


class PartKind(StrEnum):
    """What a part is."""

    SCHEMA = "schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"
    TAG = "tag"  # a structural tag: schemas and texts at any depth


@dataclass(frozen=True)
class Part:
    """One place: `value` as parsed (JSON texts already read), `pointer` in the request body."""

    kind: PartKind
    value: Any
    pointer: str


_OUTPUTS = (
    ("json", PartKind.SCHEMA),
    ("regex", PartKind.REGEX),
    ("choice", PartKind.CHOICE),
    ("grammar", PartKind.GRAMMAR),
    ("structural_tag", PartKind.TAG),
)
_KINDS_OF_VALUES: Mapping[PartKind, type] = {
    PartKind.SCHEMA: dict,
    PartKind.REGEX: str,
    PartKind.GRAMMAR: str,
    PartKind.CHOICE: list,
    PartKind.TAG: dict,
}


def parts_of(whole: Mapping[str, Any]) -> Iterator[Part]:
    """Yield every part of a request body that an engine may compile."""
    for name in whole:
        reader = _READERS.get(name)
        if reader is not None:
            yield from reader(whole[name], "/" + name)


def _of_response_format(asked: Any, pointer: str) -> Iterator[Part]:
    if not isinstance(asked, dict):
        return
    if asked.get("type") == "structural_tag":
        yield Part(PartKind.TAG, asked, pointer)
    elif isinstance(wrapper := asked.get("json_schema"), dict):
        yield from _part(PartKind.SCHEMA, wrapper.get("schema"), f"{pointer}/json_schema/schema")


def _of_text(text: Any, pointer: str) -> Iterator[Part]:
    if isinstance(text, dict) and isinstance(wanted := text.get("format"), dict):
        yield from _part(PartKind.SCHEMA, wanted.get("schema"), f"{pointer}/format/schema")


def _of_outputs(outputs: Any, pointer: str) -> Iterator[Part]:
    if isinstance(outputs, dict):
        for name, kind in _OUTPUTS:
            yield from _part(kind, outputs.get(name), f"{pointer}/{name}")


def parts_of_tag(tag: Any, pointer: str) -> Iterator[Part]:
    """Yield the schemas, expressions and grammars inside a structural tag, of the old shape or the new."""
    pending: list[tuple[Any, str]] = [(tag, pointer)]
    while pending:
        value, place = pending.pop()
        if isinstance(value, list):
            pending.extend((item, place + pointer_part(i)) for i, item in enumerate(value))
            continue
        if not isinstance(value, dict):
            continue
        for name, child in value.items():
            here = place + pointer_part(name)
            if name in ("schema", "json_schema"):
                yield from _part(PartKind.SCHEMA, child, here)
            elif name == "pattern" and isinstance(child, str):
                yield Part(PartKind.REGEX, child, here)
            elif name == "grammar" and isinstance(child, str):
                yield Part(PartKind.GRAMMAR, child, here)
            elif isinstance(child, dict | list):
                pending.append((child, here))


def _of_tools(tools: Any, pointer: str) -> Iterator[Part]:
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict):
            continue
        if isinstance(function := tool.get("function"), dict):
            place = f"{pointer}/{index}/function/parameters"
            yield from _part(PartKind.SCHEMA, function.get("parameters"), place)
        else:
            yield from _part(PartKind.SCHEMA, tool.get("parameters"), f"{pointer}/{index}/parameters")


def _part(kind: PartKind, value: Any, pointer: str) -> Iterator[Part]:
    if kind in (PartKind.SCHEMA, PartKind.TAG) and isinstance(value, str):
        try:
            value = exact_json.loads(value)
        except orjson.JSONDecodeError:
            return  # the request parser, or the engine, says what is wrong with it
    if isinstance(value, _KINDS_OF_VALUES[kind]):
        yield Part(kind, value, pointer)


_READERS: Mapping[str, Callable[[Any, str], Iterator[Part]]] = {
    "response_format": _of_response_format,
    "text": _of_text,
    "structured_outputs": _of_outputs,
    "tools": _of_tools,
    "functions": _of_tools,
    "structural_tag": partial(_part, PartKind.TAG),
    **{f"guided_{name}": partial(_part, kind) for name, kind in _OUTPUTS},
}
