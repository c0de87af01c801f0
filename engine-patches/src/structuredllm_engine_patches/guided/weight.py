"""How heavy a grammar looks before anybody compiles it. Pure.

A guess from the text alone, only used to choose the lane and the order (`guided.lanes`), never to refuse:
a large tool set is heavy and fine, and a bomb can look light.
"""

import re

_BRACES = re.compile(r"\{\s*(\d{1,9})?\s*(?:,\s*(\d{1,9})?\s*)?\}")
_BOUNDS = re.compile(r'"(?:min|max)(?:Items|Length|Properties)"\s*:\s*(\d{1,9})')
CAP = 1_000_000_000


def weight_of(spec: str) -> int:
    """Return a number that grows with the text's length and with what its repetitions multiply to.

    Repetitions in braces, as in a regex or in EBNF, may lie inside one another: they are multiplied. Bounds
    of a JSON schema are added.
    """
    repeats = 1
    for low, high in _BRACES.findall(spec):
        repeats *= max(int(high or 0), int(low or 0), 1)
        if repeats >= CAP:
            return CAP
    bounds = sum(int(text) for text in _BOUNDS.findall(spec))
    return min(CAP, len(spec) + (repeats - 1) + bounds)
