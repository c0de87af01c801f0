"""Speculative windows: verified drafts, rows behind a placeholder, refused drafts, kept rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_engine_patches.guided.windows import (
    PLACEHOLDER,
    kept_rows,
    open_rows,
    refused_drafts,
    verified_drafts,
)

WINDOW = st.lists(st.sampled_from([PLACEHOLDER, 0, 7]), max_size=5)


@pytest.mark.parametrize(
    ("drafts", "verified"), [([], 0), ([5], 1), ([PLACEHOLDER], 0), ([5, PLACEHOLDER, 6], 1), ([0, 0], 2)]
)
def test_drafts_before_the_first_placeholder_are_verified(drafts: list[int], verified: int) -> None:
    assert verified_drafts(drafts) == verified


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([], []),
        ([[], [1, 2]], []),
        ([[PLACEHOLDER]], [(0, range(1, 2))]),
        ([[1], [2, PLACEHOLDER, PLACEHOLDER]], [(3, range(4, 6))]),
        ([[], [PLACEHOLDER, 9], [3, PLACEHOLDER]], [(1, range(2, 4)), (5, range(6, 7))]),
    ],
)
def test_rows_behind_a_placeholder_repeat_its_row(
    windows: list[list[int]], expected: list[tuple[int, range]]
) -> None:
    assert open_rows(windows) == expected


@given(st.lists(WINDOW, max_size=6))
def test_exactly_the_rows_behind_placeholders_are_replaced(windows: list[list[int]]) -> None:
    behind = []
    for drafts in windows:
        seen = False
        for token in [*drafts, 1]:
            behind.append(seen)
            seen = seen or token == PLACEHOLDER
    replaced = {row: source for source, rows in open_rows(windows) for row in rows}
    assert sorted(replaced) == [row for row, is_behind in enumerate(behind) if is_behind]
    assert not any(behind[source] for source in replaced.values())


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([], []),
        ([(3, None)], []),
        ([(3, 3)], []),
        ([(3, 5)], []),
        ([(3, 0)], [0, 1, 2]),
        ([(2, None), (3, 1), (0, 0), (2, 1)], [3, 4, 6]),
        ([(2, -1)], [0, 1]),
    ],
)
def test_drafts_that_the_grammar_does_not_vouch_for_are_refused(
    windows: list[tuple[int, int | None]], expected: list[int]
) -> None:
    assert refused_drafts(windows) == expected


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([], []),
        ([(0, 0), (2, 2)], [0, 1, 2, 3]),
        ([(2, 0), (2, 1), (0, 0)], [0, 3, 4, 6]),
    ],
)
def test_rows_of_dropped_drafts_go(windows: list[tuple[int, int]], expected: list[int]) -> None:
    assert kept_rows(windows) == expected


@pytest.mark.parametrize("window", [(1, 2), (1, -1)])
def test_more_drafts_than_rows_are_an_error(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="drafts kept of 1 scheduled"):
        kept_rows([window])
