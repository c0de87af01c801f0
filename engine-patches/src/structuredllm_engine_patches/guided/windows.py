"""Speculative windows of a batch: which drafts a grammar vouches for, and which mask rows go with them. Pure.

A window is what one request checks in one step: its draft tokens, then one token of the model's own (the
bonus). The mask has a row for each. A draft of `PLACEHOLDER` is one that the grammar refused, that comes
after a refused one, or that never reached the scheduler: nothing is known about its token. Upstream
leaves every row after the first placeholder open (vLLM issues 49694 and 54437), which is sound only if the
worker can take none of those drafts.
"""

from collections.abc import Iterable, Sequence

PLACEHOLDER = -1


def verified_drafts(drafts: Sequence[int]) -> int:
    """Return how many leading drafts were checked by the grammar: those before the first placeholder."""
    for position, token in enumerate(drafts):
        if token < 0:
            return position
    return len(drafts)


def open_rows(windows: Iterable[Sequence[int]]) -> list[tuple[int, range]]:
    """Return the rows that upstream leaves open behind a placeholder, and what to put there.

    Args:
        windows: the draft tokens of each structured request, in the order of the mask's rows.

    Returns:
        Pairs of the placeholder's own row, which the grammar filled, and the rows after it in its window.
        They shall repeat it: a token that is legal nowhere in the window is then legal in no row of it.
    """
    found = []
    start = 0
    for drafts in windows:
        end = start + len(drafts) + 1
        verified = verified_drafts(drafts)
        if verified < len(drafts):
            found.append((start + verified, range(start + verified + 1, end)))
        start = end
    return found


def refused_drafts(windows: Iterable[tuple[int, int | None]]) -> list[int]:
    """Return the drafts that must not be taken, as positions in the batch's list of all drafts.

    Args:
        windows: for each request in the worker's order, the number of its drafts and how many leading ones
            its grammar vouches for; None for a plain request, whose drafts are all fine.
    """
    found: list[int] = []
    start = 0
    for drafts, verified in windows:
        if verified is not None:
            found.extend(range(start + min(max(verified, 0), drafts), start + drafts))
        start += drafts
    return found


def kept_rows(windows: Sequence[tuple[int, int]]) -> list[int]:
    """Return which mask rows a worker needs that dropped drafts at the end of windows.

    Args:
        windows: for each structured request in the order of the mask's rows, the number of drafts that the
            mask was built for and the number that the worker kept.

    Raises:
        ValueError: a worker kept more drafts than the mask has rows for.
    """
    found: list[int] = []
    start = 0
    for scheduled, kept in windows:
        if not 0 <= kept <= scheduled:
            raise ValueError(f"{kept} drafts kept of {scheduled} scheduled")
        found.extend(range(start, start + kept + 1))
        start += scheduled + 1
    return found
