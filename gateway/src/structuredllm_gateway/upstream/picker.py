"""Which serving endpoint gets a request: the one with the fewest outstanding requests.

Owns the count of outstanding requests by endpoint; pure but for the injected randomness that breaks ties.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from structuredllm_gateway.upstream.endpoints import Endpoint


class LeastOutstandingPicker:
    """Picks by load as this gateway sees it; endpoints without outstanding requests take no memory."""

    def __init__(self, rng: random.Random) -> None:
        """Start with nothing outstanding; `rng` breaks ties so that gateways do not all pick the same."""
        self._rng = rng
        self._outstanding: Counter[str] = Counter()

    def outstanding(self, endpoint: Endpoint) -> int:
        """Return the number of requests now on `endpoint`."""
        return self._outstanding[endpoint.url]

    def pick(self, endpoints: Iterable[Endpoint], exclude: Collection[str] = ()) -> Endpoint | None:
        """Return one of `endpoints` whose name is not in `exclude`, None when there is none."""
        candidates = [e for e in endpoints if e.name not in exclude]
        if not candidates:
            return None
        least = min(self._outstanding[e.url] for e in candidates)
        return self._rng.choice([e for e in candidates if self._outstanding[e.url] == least])

    @contextmanager
    def lease(self, endpoint: Endpoint) -> Iterator[None]:
        """Count one request on `endpoint` while the context lasts."""
        self._outstanding[endpoint.url] += 1
        try:
            yield
        finally:
            self._outstanding[endpoint.url] -= 1
            if self._outstanding[endpoint.url] <= 0:
                del self._outstanding[endpoint.url]
