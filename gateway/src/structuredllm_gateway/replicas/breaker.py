"""The breaker of one replica: closed, quarantined, probing; when it opens and for how long.

Owns the thresholds and the growth of the time; pure, the time comes in. Whether a replica that has earned its
quarantine may be spared is the pool's decision (`pool`), which knows how many are left.

Two tracks are kept apart. Answers: structured output that is wrong; it keeps structured requests away, and
others only when asked to (`covers_plain`), so that a good GPU stays in use. Transport: the replica does not
answer or fails; that keeps everything away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from structuredllm_gateway.replicas.blame import WHOLE_FAILURE, Blame, blame_of
from structuredllm_gateway.replicas.window import SlidingWindow


class BreakerState(StrEnum):
    """Where a replica stands."""

    CLOSED = "closed"
    QUARANTINED = "quarantined"
    PROBING = "probing"  # half-open: only the probe asks it


@dataclass(frozen=True)
class QuarantineRules:
    """When and for how long.

    Attributes:
        consecutive: whole failures in a row; a wrong answer counts half.
        ratio: share of failures in the window, 0 < x <= 1.
        window_seconds: length of the window.
        min_requests: fewest requests in the window for the ratio to count.
        base_seconds: the first quarantine; each one after it lasts twice as long.
        max_seconds: the longest one; after as long without one the growth begins anew.
        covers_plain: wrong structured answers keep unstructured requests away as well.
        max_share: share of a model's serving replicas that may be quarantined at once, 0 <= x < 1.
    """

    consecutive: int = 3
    ratio: float = 0.1
    window_seconds: float = 60.0
    min_requests: int = 20
    base_seconds: float = 30.0
    max_seconds: float = 600.0
    covers_plain: bool = False
    max_share: float = 0.5


class _Track:
    __slots__ = ("streak", "window")

    def __init__(self, seconds: float) -> None:
        self.streak = 0
        self.window = SlidingWindow(seconds)

    def clear(self) -> None:
        self.streak = 0
        self.window.clear()


class Breaker:
    """The breaker of one replica.

    Attributes:
        state: where it stands.
        covers_plain: whether the present quarantine keeps unstructured requests away too.
        adopted: the present quarantine was found by another worker of this pod.
        withheld_until: up to when it counts as one that has earned a quarantine but cannot be spared.
        reason: outcome class that opened it, "" while closed.
        since: when the state began. until: when the probe may be sent. Both on the caller's clock.
        count: quarantines in the present series.
    """

    __slots__ = (
        "_answers",
        "_released",
        "_rules",
        "_transport",
        "_trial",
        "adopted",
        "count",
        "covers_plain",
        "reason",
        "since",
        "state",
        "until",
        "withheld_until",
    )

    def __init__(self, rules: QuarantineRules, now: float) -> None:
        """Start closed."""
        self._rules = rules
        self._answers = _Track(rules.window_seconds)
        self._transport = _Track(rules.window_seconds)
        self._released = now
        self.state = BreakerState.CLOSED
        self.covers_plain = False
        self._trial: _Track | None = None
        self.withheld_until = now
        self.adopted = False
        self.reason = ""
        self.since = now
        self.until = now
        self.count = 0

    @property
    def is_closed(self) -> bool:
        """Whether it may get requests of every kind."""
        return self.state is BreakerState.CLOSED

    @property
    def on_trial(self) -> bool:
        """Whether it was released without proof and has not shown itself since."""
        return self._trial is not None

    def counts(self, now: float) -> tuple[int, float, int, float]:
        """Return answers and failures among them, then tries and failures to answer, in the window."""
        self._answers.window.advance(now)
        self._transport.window.advance(now)
        answers, tries = self._answers.window, self._transport.window
        return (
            answers.events,
            answers.weight / WHOLE_FAILURE,
            tries.events,
            tries.weight / WHOLE_FAILURE,
        )

    def record(self, blame: Blame, now: float, *, structured: bool) -> bool:
        """Count one try; return whether the replica has now earned a quarantine.

        Answers that end while it is quarantined were begun before, so they say nothing new.
        """
        if blame is Blame.NOTHING or self.state is not BreakerState.CLOSED:
            return False
        if blame is Blame.SILENT:
            return self._count(self._transport, blame.weight, now)
        self._count(self._transport, 0, now)
        return self._count(self._answers, blame.weight, now) if structured else False

    def good(self, now: float, *, structured: bool) -> None:
        """Count one try that went well: `record` of GOOD, in the fewest steps, as it is every request's."""
        if self.state is not BreakerState.CLOSED:
            return
        track = self._transport
        track.streak = 0
        track.window.add(now)
        if structured:
            if self._trial is not None:
                self._trial = None
            track = self._answers
            track.streak = 0
            track.window.add(now)
        elif track is self._trial:
            self._trial = None

    def open(self, reason: str, *, covers_plain: bool, now: float) -> None:
        """Quarantine it for the time that its series has come to."""
        rules = self._rules
        if now - self._released >= rules.max_seconds:
            self.count = 0
        # The exponent is bounded so that a long series cannot overflow.
        seconds = min(rules.base_seconds * 2.0 ** min(self.count, 32), rules.max_seconds)
        self.count += 1
        self.adopted = False
        self.state = BreakerState.QUARANTINED
        self.reason = reason
        self.covers_plain = covers_plain
        self._trial = None
        self.withheld_until = now
        self.since, self.until = now, now + seconds

    def adopt(self, reason: str, *, covers_plain: bool, now: float, until: float) -> None:
        """Quarantine it as another worker has done; the series is that worker's."""
        self.open(reason, covers_plain=covers_plain, now=now)
        self.count -= 1
        self.adopted = True
        self.until = until

    def withhold(self, now: float) -> bool:
        """Note that it is spared; return whether that is news: once in `base_seconds`, not each time."""
        if now < self.withheld_until:
            return False
        self.withheld_until = now + self._rules.base_seconds
        return True

    def probe(self) -> None:
        """The time is over and a probe is sent."""
        self.state = BreakerState.PROBING

    def reopen(self, now: float) -> None:
        """The probe failed: on with the quarantine, for longer."""
        since = self.since
        self._released = now
        self.open(self.reason, covers_plain=self.covers_plain, now=now)
        self.since = since

    def release(self, now: float, *, on_trial: bool) -> None:
        """Close it. `on_trial`: nothing was proven, so the next failure of its kind opens it again."""
        self.state = BreakerState.CLOSED
        kind = self._transport if blame_of(self.reason) is Blame.SILENT else self._answers
        self._trial = kind if on_trial else None
        self.covers_plain = False
        self.reason = ""
        self.since = self.until = self._released = now
        self._answers.clear()
        self._transport.clear()

    def _count(self, track: _Track, weight: int, now: float) -> bool:
        track.window.add(now, 1, weight)
        if not weight:
            track.streak = 0
            if track is self._trial:
                self._trial = None
            return False
        track.streak += weight
        rules = self._rules
        if track is self._trial or track.streak >= WHOLE_FAILURE * rules.consecutive:
            return True
        window = track.window
        return (
            window.events >= rules.min_requests
            and window.weight >= WHOLE_FAILURE * rules.ratio * window.events
        )
