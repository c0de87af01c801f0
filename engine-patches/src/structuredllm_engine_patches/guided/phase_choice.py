"""Whether spreading the decodes over the pipeline's phases pays, found out by trying. Pure.

With a stage time of a + b x tokens a step of all n requests takes `depth` (a + b n) for its way through the
pipeline, one of a `depth`-th of them `depth` (a + b n / depth): spread, every request gets its next token
sooner by what b makes of the difference. Where b is nothing the spread can only lose: all stages are busy
all the time, so each delay of one step is a delay of the next. Nobody says what b is, so it is measured:
the time between two tokens of a request, with all decodes together and with them spread.

The first spread step after a time together goes through an empty pipeline. Its time and that of a step with
all of them give a and b, at the cost of less than one pass through the pipeline where it does not pay. What
is measured once they are spread has the last word.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

ENTER_GAIN = 1.10
"""Spread where the time between tokens is expected to shrink by this factor ..."""

STAY_GAIN = 1.03
"""... and stay spread while it is measured to be shorter by this one."""

FEWEST_SAMPLES = 3
NEWEST_SAMPLES = 8
KEPT_SAMPLES = 64
NEAR = 8
"""Samples count for numbers of requests that differ by an eighth."""

FIRST_PAUSE, LONGEST_PAUSE = 64, 1024
"""Tokens of a request before a verdict against spreading is looked at again; doubled each time it stands."""

FIRST_REVIEW, LONGEST_REVIEW = 512, 4096
"""The same for a verdict in favour."""

BETWEEN_TRIALS = 24
"""Fewest tokens of a request between two trials."""

OTHER_LEVEL = 0.12
"""The time between tokens changed by this share since the verdict: so has the work, and nothing holds."""

OFF_THE_LINE = 0.25
"""What the line says of all decodes together is off by this share: as above."""


@dataclass(frozen=True)
class Line:
    """Seconds that a step of so many requests needs from the engine core and back: `fixed + each * n`."""

    fixed: float
    each: float

    def seconds(self, requests: int) -> float:
        """Return the time of a step."""
        return self.fixed + self.each * requests


def line_through(requests: int, seconds: float, fewer: int, fewer_seconds: float) -> Line:
    """Return the line through two steps' times; noise makes neither part of it negative.

    Raises:
        ValueError: `fewer` is not below `requests`.
    """
    if not 0 < fewer < requests:
        raise ValueError(f"{fewer} is no smaller step than {requests}")
    each = min(max(0.0, (seconds - fewer_seconds) / (requests - fewer)), seconds / requests)
    return Line(seconds - each * requests, each)


class Choice(Protocol):
    """What decides whether the decodes are spread."""

    def spread(self, decodes: int) -> bool:
        """Return whether so many decodes are to be spread now."""

    def observe(self, decodes: int, seconds: float) -> None:
        """Take the time between two tokens of one request, see `PhaseChoice.observe`."""


class AlwaysSpread:
    """Spreads whatever it costs."""

    def __init__(self, depth: int) -> None:
        """Decide for a pipeline of `depth` stages."""
        self.depth = depth

    def spread(self, decodes: int) -> bool:
        """Return True."""
        return True

    def observe(self, decodes: int, seconds: float) -> None:
        """Learn nothing."""


class PhaseChoice:
    """Decides for one scheduler; holds a bounded number of samples and nothing of any request."""

    def __init__(self, depth: int) -> None:
        """Decide for a pipeline of `depth` stages.

        Raises:
            ValueError: depth is not positive.
        """
        if depth < 1:
            raise ValueError(f"a pipeline has at least one stage, not {depth}")
        self._depth = depth
        self._spread = False
        self._trying = False
        self._together: deque[tuple[int, float]] = deque(maxlen=KEPT_SAMPLES)
        self._apart: deque[tuple[int, float]] = deque(maxlen=KEPT_SAMPLES)
        self._line: Line | None = None
        self._since_verdict = 0
        self._since_trial = BETWEEN_TRIALS
        self._pause = self._next_pause = FIRST_PAUSE
        self._review = FIRST_REVIEW
        self._level: tuple[int, float] | None = None

    def spread(self, decodes: int) -> bool:
        """Return whether the decodes are to be spread now.

        Args:
            decodes: how many requests decode.
        """
        gain = self.gain(decodes)
        if self._trying:
            return True
        if self._spread:
            if gain is None or gain < STAY_GAIN:
                self._turn_down()
            elif self._since_verdict >= self._review:
                self._review = min(2 * self._review, LONGEST_REVIEW)
                self._since_trial = BETWEEN_TRIALS
                self._start_anew()
        elif gain is None:
            if self._since_trial >= BETWEEN_TRIALS and typical(self._together, decodes) and decodes > 1:
                self._spread = self._trying = True
        elif gain >= ENTER_GAIN:
            self._spread, self._since_verdict, self._level = True, 0, None
        elif self._since_verdict >= self._pause:
            self._apart.clear()
            self._line = None
        return self._spread

    def observe(self, decodes: int, seconds: float) -> None:
        """Take the time between two tokens of one request, both under the last answer of `spread`.

        The first time after the answer has become yes is that from the step's begin to its token.

        Args:
            decodes: how many requests decoded.
            seconds: the time.
        """
        self._since_verdict += 1
        if self._trying:
            self._judge(decodes, seconds)
            return
        if not self._spread:
            self._since_trial += 1
        samples = self._apart if self._spread else self._together
        samples.append((decodes, seconds))
        self._check_level(typical(samples, decodes, fewest=NEWEST_SAMPLES), decodes)

    def _check_level(self, usual: float | None, decodes: int) -> None:
        """Start anew when what is usual now is not what was usual after the last verdict."""
        if usual is None:
            return
        line = None if self._spread or self._line is None else self._line.seconds(decodes)
        if line is not None and abs(usual / line - 1) > OFF_THE_LINE:
            self._start_anew()
        elif self._level is None or not _is_near(self._level[0], decodes):
            self._level = (decodes, usual)
        elif abs(usual / self._level[1] - 1) > OTHER_LEVEL:
            self._start_anew()

    def gain(self, decodes: int) -> float | None:
        """Return by what factor spreading shortens the time between tokens; None while that is not known."""
        share = -(-decodes // self._depth)
        if decodes < 2 or share == decodes:
            return 1.0
        together = typical(self._together, decodes)
        if together is None and self._line is not None:
            together = self._line.seconds(decodes)
        apart = typical(self._apart, decodes)
        if together is not None and apart is not None:
            return together / apart
        if self._line is None:
            return None
        return self._line.seconds(decodes) / self._line.seconds(share)

    def _judge(self, decodes: int, seconds: float) -> None:
        self._trying = False
        self._since_trial = 0
        together = typical(self._together, decodes)
        share = -(-decodes // self._depth)
        if together is None or share == decodes:
            self._start_anew()
            return
        self._line = line_through(decodes, together, share, seconds)
        if (self.gain(decodes) or 0.0) >= ENTER_GAIN:
            self._since_verdict, self._next_pause, self._level = 0, FIRST_PAUSE, None
        else:
            self._turn_down()

    def _turn_down(self) -> None:
        self._spread = False
        self._since_verdict = 0
        self._level = None
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)

    def _start_anew(self) -> None:
        self._spread = False
        self._line = None
        self._together.clear()
        self._apart.clear()
        self._since_verdict = 0
        self._level = None


def typical(samples: Iterable[tuple[int, float]], decodes: int, fewest: int = FEWEST_SAMPLES) -> float | None:
    """Return the median of the newest samples with about so many requests; None where there are too few."""
    near = [seconds for n, seconds in samples if _is_near(n, decodes)]
    return median(near[-NEWEST_SAMPLES:]) if len(near) >= fewest else None


def _is_near(one: int, other: int) -> bool:
    return abs(one - other) <= max(1, other // NEAR)
