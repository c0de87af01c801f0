"""Makes the workers of a pod agree on quarantines: what one has found, the others need not find again.

Owns what is written on the shared board and what is taken from it; the board itself is given in. Each worker
says only what it found itself, so nothing is passed round for ever; each ends a quarantine by its own burst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from structuredllm_gateway.replicas.breaker import BreakerState
from structuredllm_gateway.replicas.roster import Roster

_PREFIX = "quarantine"


class Board(Protocol):
    """Names, each with the monotonic seconds until which it holds."""

    def publish(self, held: Mapping[str, float]) -> None:
        """Replace what this worker says."""
        ...

    def held(self) -> Mapping[str, float]:
        """Return what all workers say now."""
        ...


class Agreement:
    """Keeps one worker's quarantines and the board in step."""

    def __init__(self, roster: Roster, board: Board, clock: Callable[[], float]) -> None:
        """Take the replicas and the board; `clock` is that of both."""
        self._roster = roster
        self._board = board
        self._clock = clock
        self._said: dict[str, float] = {}

    def exchange(self) -> None:
        """Say what was found here, take over what was found elsewhere; cheap, called twice a second."""
        now = self._clock()
        own: dict[str, float] = {}
        replicas = {}
        for pool in self._roster.pools():
            for replica in pool.replicas.values():
                key = f"{_PREFIX} {pool.model} {replica.name} {replica.endpoint.incarnation}"
                replicas[key] = (pool, replica)
                breaker = replica.breaker
                if breaker.state is BreakerState.QUARANTINED and not breaker.adopted and breaker.until > now:
                    scope = "All" if breaker.covers_plain else "StructuredOnly"
                    own[f"{key} {breaker.reason} {scope}"] = breaker.until
        if own != self._said:
            self._board.publish(own)
            self._said = own
        for name, until in self._board.held().items():
            key, *said = name.rsplit(" ", 2)
            found = replicas.get(key)
            if found is not None and len(said) == 2 and until > now and found[1].breaker.is_closed:
                reason, scope = said
                self._roster.adopt(*found, reason, covers_plain=scope == "All", until=until)
