"""How much a key may use: token buckets for requests and tokens, a count for concurrency.

Owns the arithmetic; pure, the time is given in. A bucket holds one minute's allowance and fills evenly, so a
client that was silent may send a minute's worth at once and then at the steady rate, as with OpenAI.
"""

from __future__ import annotations

import math

_MINUTE = 60.0


class Bucket:
    """One allowance of `per_minute` units. `level` may be below zero after a settlement."""

    __slots__ = ("_at", "level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        """Start full."""
        self.per_minute = per_minute
        self.level = float(per_minute)
        self._at = now

    def refill(self, now: float) -> None:
        """Bring the level up to `now` (seconds)."""
        passed, self._at = now - self._at, now
        if passed > 0:
            self.level = min(float(self.per_minute), self.level + passed * self.per_minute / _MINUTE)

    def change(self, per_minute: int, now: float) -> None:
        """Take a new allowance; what is used stays used."""
        self.refill(now)
        self.level += per_minute - self.per_minute
        self.per_minute = per_minute

    def seconds_until(self, units: float) -> float:
        """Return how long until `units` can be taken, 0.0 = now."""
        return max(0.0, (units - self.level) * _MINUTE / self.per_minute)

    @property
    def remaining(self) -> int:
        """Whole units that can be taken now."""
        return max(0, math.floor(self.level))

    @property
    def reset_seconds(self) -> float:
        """How long until the bucket is full."""
        return self.seconds_until(float(self.per_minute))


def duration_text(seconds: float) -> str:
    """Write seconds the way OpenAI's x-ratelimit-reset-* headers do: `120ms`, `6.5s`, `1m12s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < _MINUTE:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
