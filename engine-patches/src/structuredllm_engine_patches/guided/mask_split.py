"""How many threads fill the masks of a step. Pure.

Most rows cost some microseconds. A row near the end of a bounded string costs a millisecond or more, because
the grammar has to try each long token, and with many requests there such a step takes longer than a stage
of the pipeline. Upstream fills up to 128 rows on the engine core's loop and uses its pool beyond
(`StructuredOutputManager.grammar_bitmask`); the number of rows says little about the time.
"""

from typing import Final

PARALLEL_FROM_SECONDS: Final = 0.002
"""A step that is expected to take less stays on the loop: handing rows to threads costs about 50 us each."""

LEAST_ROWS: Final = 4
PIECES_PER_WORKER: Final = 4
"""More pieces than workers, so that one piece of slow rows does not keep the others waiting."""

_NEWEST: Final = 0.5
"""Weight of the newest step in the expected cost of a row: states come in waves of ten steps and more."""


class MaskSplit:
    """Decides it from what the rows of the steps before cost."""

    def __init__(self, workers: int) -> None:
        """Take the number of threads that may work at a time."""
        self.workers = workers
        self._row_seconds = 0.0

    def rows_per_piece(self, rows: int) -> int | None:
        """Return how many rows a thread gets at a time; None to fill all on the loop."""
        expected = rows * self._row_seconds
        if self.workers < 2 or rows < LEAST_ROWS or expected < PARALLEL_FROM_SECONDS:
            return None
        return -(-rows // (self.workers * PIECES_PER_WORKER))

    def note(self, rows: int, seconds: float, piece: int | None) -> None:
        """Learn from a step.

        Args:
            rows: filled.
            seconds: wall time that it took.
            piece: what `rows_per_piece` had returned for it.
        """
        if rows <= 0:
            return
        at_once = 1 if piece is None else min(self.workers, -(-rows // piece))
        newest = seconds * at_once / rows
        self._row_seconds += _NEWEST * (newest - self._row_seconds)
