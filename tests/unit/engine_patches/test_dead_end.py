"""Masks that allow nothing are found, and only the row that follows a request's last token counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided.dead_end import PROBED_WORDS, dead_rows, owners_of_first_rows


class Row:
    def __init__(self, words: list[int]) -> None:
        self._words = words

    def any(self) -> bool:
        return max(self._words, default=0) > 0


class Flags(list[bool]):
    def all(self) -> bool:
        return all(self)

    def tolist(self) -> list[bool]:
        return list(self)


class Matrix:
    """As much of a numpy array as the search uses; counts the full rows that it looks at."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.full_looks = 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            columns: slice = key[1]
            return SimpleNamespace(any=lambda axis: Flags(any(words[columns]) for words in self.rows))
        self.full_looks += 1
        return Row(self.rows[key])


def row(width: int, *bits: int) -> list[int]:
    return [1 if word in bits else 0 for word in range(width)]


def test_only_rows_without_any_bit_are_dead() -> None:
    width = PROBED_WORDS + 10
    matrix = Matrix([row(width, 0), row(width), row(width, PROBED_WORDS + 9), row(width, 63)])
    assert dead_rows(matrix) == [1]
    assert matrix.full_looks == 2


def test_live_rows_cost_only_the_probed_words() -> None:
    matrix = Matrix([row(1000, 3)] * 50)
    assert dead_rows(matrix) == []
    assert matrix.full_looks == 0


def test_no_rows() -> None:
    assert dead_rows(Matrix([])) == []


@pytest.mark.parametrize(
    ("drafts", "owners"),
    [
        ([0, 0, 0], {0: "a", 1: "b", 2: "c"}),
        ([2, 0, 1], {0: "a", 3: "b", 4: "c"}),
    ],
)
def test_rows_after_drafts_belong_to_nobody(drafts: list[int], owners: dict[int, str]) -> None:
    assert owners_of_first_rows(["a", "b", "c"], drafts) == owners
