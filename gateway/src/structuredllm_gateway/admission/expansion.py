"""How far a schema grows: every reference replaced by what it names, every repetition multiplied.

Owns the two products over the graph of a `Survey`. Pure: must not import I/O. Each subschema is computed once
(references make the graph a shared one, which is what lets a short schema stand for an astronomical one), so
the work is linear in subschemas and references. A cycle counts once: recursion is allowed, and what it can
grow to is bounded by the answer's length, not by the schema.
"""

from __future__ import annotations

from typing import Any

from structuredllm_gateway.admission.patterns import CAP
from structuredllm_gateway.admission.rules import Limits, refuse
from structuredllm_gateway.admission.schema_survey import Node, Survey, place_pointer, resolve

_OPEN = (1, 1)


def check_expansion(found: Survey, schema: dict[str, Any], pointer: str, limits: Limits) -> int:
    """Refuse a schema that grows above the limits.

    Returns:
        Steps taken, for tests of the bound on the work.

    Raises:
        SchemaRejectedError: `param` is the pointer of the innermost subschema that is already too large.
    """
    known: dict[int, tuple[int, int]] = {}  # by id of the node: size, repetitions
    pending: list[tuple[Node, list[tuple[Node, int]] | None]] = [(found.root, None)]
    steps = 0
    while pending:
        node, edges = pending.pop()
        steps += 1
        if edges is None:
            if id(node) in known:
                continue
            known[id(node)] = _OPEN  # what a cycle finds
            edges = node.edges + [
                (target, 1)
                for reference in node.references
                if (target := resolve(found, schema, reference)) is not None
            ]
            pending.append((node, edges))
            pending.extend((child, None) for child, _ in edges if id(child) not in known)
            continue
        size, repeated = 1 + node.leaves, node.length
        for child, factor in edges:
            child_size, child_repeated = known[id(child)]
            size = min(CAP, size + child_size)
            repeated = max(repeated, min(CAP, factor * child_repeated))
            steps += 1
        known[id(node)] = (size, repeated)
        if size > limits.max_expanded_nodes:
            refuse("schema_expands_too_far", place_pointer(pointer, node.parent), limits.max_expanded_nodes)
        if repeated > limits.max_repetitions:
            refuse("schema_repeats_too_often", place_pointer(pointer, node.parent), limits.max_repetitions)
    return steps
