"""Find masks that allow nothing. Pure: works on anything that behaves like a two-dimensional integer array.

A row without a single bit means that the grammar has not ended and yet takes no token: from there on no
answer can satisfy it. Sampling from such a row gives whatever the sampler makes of minus infinity
everywhere.
"""

from collections.abc import Sequence
from typing import Any

PROBED_WORDS = 64
"""Words of 32 tokens looked at first. Tokens for single characters have low ids, so nearly every row shows a
bit there, and a row of a vocabulary of 150,000 tokens costs 64 words instead of 4,700."""


def dead_rows(bitmask: Any) -> list[int]:
    """Return the rows that allow no token.

    Args:
        bitmask: rows by words of 32 tokens, a bit set where the token is allowed.
    """
    alive = bitmask[:, :PROBED_WORDS].any(axis=1)
    if alive.all():
        return []
    return [row for row, found in enumerate(alive.tolist()) if not found and not bitmask[row].any()]


def owners_of_first_rows(request_ids: Sequence[str], drafts: Sequence[int]) -> dict[int, str]:
    """Return the request of every row that follows its last accepted token.

    The rows after a request's first one follow draft tokens, which may never be taken: they prove nothing.

    Args:
        request_ids: the structured requests in the order of their rows.
        drafts: how many draft tokens each of them has; it has that many rows more.
    """
    owners: dict[int, str] = {}
    row = 0
    for request_id, extra in zip(request_ids, drafts, strict=True):
        owners[row] = request_id
        row += 1 + extra
    return owners
