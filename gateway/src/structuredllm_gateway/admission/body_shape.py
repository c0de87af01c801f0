"""The shape of a request body: how deep its JSON is nested and how many values it has.

Owns the two checks that come first, because everything after them walks the body. Pure: must not import I/O.
"""

from __future__ import annotations

from typing import Any

from structuredllm_gateway.admission.rules import Limits, pointer_part, refuse

CONTAINER_WEIGHT = 9
"""What a list or an object costs to look at, in scalars; long lists of numbers (token ids) are cheap."""

_POINTER_STEPS = 8


def check_body(body: bytes, whole: Any, limits: Limits) -> None:
    """Refuse a body that is nested too deep or has too many values.

    Args:
        body: the bytes that `whole` was parsed from. Counting brackets and commas in them is a bound that
            costs next to nothing and settles nearly every request; only above it are the values walked.
        whole: the parsed body.
        limits: the bounds.

    Raises:
        RequestError: above a limit; `param` is the pointer of the place.
    """
    openers = body.count(b"{") + body.count(b"[")
    values = openers * (1 + CONTAINER_WEIGHT) + body.count(b",") + 1
    if openers <= limits.max_body_depth and values <= limits.max_body_nodes:
        return
    codes = ("request_too_deep", "request_too_many_values")
    walk(whole, limits.max_body_depth, limits.max_body_nodes, codes, weight=CONTAINER_WEIGHT)


def walk(
    value: Any, max_depth: int, max_nodes: int, codes: tuple[str, str], pointer: str = "", weight: int = 0
) -> int:
    """Count all values without recursion: hostile depth must not become depth of our stack.

    A container counts as `weight` values more than a scalar.

    Returns:
        The number of values, at most `max_nodes`.

    Raises:
        RequestError: with the first of `codes` for the depth, with the second for the number.
    """
    # Only containers are kept: the depth of a scalar is that of its container.
    pending: list[Any] = [(value, 1, None, "")]
    nodes = 1 + weight
    while pending:
        place = pending.pop()
        item, depth = place[0], place[1]
        nodes += len(item) if isinstance(item, dict | list) else 0
        if nodes > max_nodes:
            refuse(codes[1], pointer, max_nodes)
        if isinstance(item, dict):
            pairs: Any = item.items()
        elif isinstance(item, list):
            pairs = enumerate(item)
        else:
            continue
        if item and depth > max_depth:
            refuse(codes[0], pointer + _pointer(place), max_depth)
        for name, child in pairs:
            if isinstance(child, dict | list):
                nodes += weight
                if nodes > max_nodes:
                    refuse(codes[1], pointer, max_nodes)
                pending.append((child, depth + 1, place, name))
    return nodes


def _pointer(place: Any) -> str:
    """Write the first steps to a place: enough to find it, and no longer for being deep."""
    names: list[Any] = []
    while place[2] is not None:
        names.append(place[3])
        place = place[2]
    return "".join(pointer_part(name) for name in names[: -_POINTER_STEPS - 1 : -1])
