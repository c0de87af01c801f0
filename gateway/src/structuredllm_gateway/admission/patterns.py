"""How large a regular expression or a grammar text is: nesting, and size with every repetition written out.

Owns one linear scan, one character at a time: a regular expression over hostile text could itself be slow.
Pure: must not import I/O. Whether a text is well-formed is not judged here; the compilers do.
"""

from __future__ import annotations

from dataclasses import dataclass

CAP = 10**12
"""Sizes stop growing here, so that hostile bounds do not make hostile integers."""

_LONGEST_BOUND = 9


@dataclass(frozen=True)
class TextFacts:
    """`depth`: nested groups; `expansion`: parts when every `{n,m}` is written out, at most `CAP`."""

    depth: int
    expansion: int


def measure(text: str, *, quoted: bool = False) -> TextFacts:
    """Measure a regular expression, or with `quoted` a grammar, in which "text" is one part.

    Work is linear in the length of `text`; every text is accepted.
    """
    groups = [0]
    last = 0  # size of the part that a following {n,m} repeats
    depth = deepest = 0
    at, end = 0, len(text)
    while at < end:
        character = text[at]
        if character == "\\":
            at += 2
            last = 1
            groups[-1] += 1
            continue
        if character == "[" or (quoted and character == '"'):
            at = _after(text, at, "]" if character == "[" else '"')
            last = 1
            groups[-1] += 1
            continue
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
            groups.append(0)
            last = 0
        elif character == ")":
            if depth:
                depth -= 1
                last = max(1, groups.pop())
                groups[-1] = min(CAP, groups[-1] + last)
        elif character == "{" and (bound := _bound(text, at)) is not None:
            count, at = bound
            grown = min(CAP, last * max(count, 1))
            groups[-1] = min(CAP, groups[-1] - last + grown)
            last = grown
            continue
        elif character not in "*+?|^$":
            last = 1
            groups[-1] += 1
        at += 1
    return TextFacts(deepest, min(CAP, sum(groups)))


def _after(text: str, at: int, closer: str) -> int:
    """Return the place after a class or string that opens at `at`; the end when it is never closed."""
    at += 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == closer:
            return at + 1
        at += 1
    return len(text)


def _bound(text: str, at: int) -> tuple[int, int] | None:
    """Read `{n}`, `{n,}` or `{n,m}` at `at`: the larger bound and the place after it; None = it is none."""
    largest = 0
    digits = 0
    place = at + 1
    while place < len(text):
        character = text[place]
        if character in "0123456789":
            digits += 1
            if digits > _LONGEST_BOUND:
                largest = CAP
            elif largest < CAP:
                start = place - digits + 1
                largest = max(largest, int(text[start : place + 1]))
        elif character == ",":
            digits = 0
        elif character == "}":
            return (largest, place + 1) if place > at + 1 else None
        else:
            return None
        place += 1
    return None
