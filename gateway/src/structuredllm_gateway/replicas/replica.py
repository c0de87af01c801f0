"""One replica of one model as this gateway sees it: where it is, its load, its breaker, its counts.

Owns the only mutable state of a replica; must not import I/O. It is a context manager: inside of it one
request counts as outstanding.
"""

from __future__ import annotations

from types import TracebackType

from structuredllm_gateway.replicas.affinity import hash64
from structuredllm_gateway.replicas.breaker import Breaker
from structuredllm_gateway.upstream.endpoints import Endpoint


class Load:
    """Requests outstanding at one address; models that share an engine share it."""

    __slots__ = ("outstanding",)

    def __init__(self) -> None:
        """Start with none."""
        self.outstanding = 0


class Replica:
    """One replica.

    Attributes:
        endpoint: where it is, as discovery said last.
        load: what is outstanding there.
        breaker: whether it is quarantined.
        seed: its place in consistent hashing.
        ready_at: since when it serves, on the roster's clock; slow start begins there.
        tries: tries by outcome class since it is known.
    """

    __slots__ = ("breaker", "endpoint", "load", "ready_at", "seed", "tries")

    def __init__(self, endpoint: Endpoint, load: Load, breaker: Breaker, ready_at: float) -> None:
        """Put together; nothing is counted yet."""
        self.endpoint = endpoint
        self.load = load
        self.breaker = breaker
        self.seed = hash64(endpoint.name.encode())
        self.ready_at = ready_at
        self.tries: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The replica's name in headers and metrics."""
        return self.endpoint.name

    def __enter__(self) -> None:
        """Count one more outstanding request."""
        self.load.outstanding += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Count one less."""
        self.load.outstanding -= 1
