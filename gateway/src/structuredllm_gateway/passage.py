"""One answer on its way out: what every answer carries, what is measured of it, the end of the key's grant.

Owns the measures that every way out shares; must not import a web framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.telemetry.request_id import HEADER
from structuredllm_gateway.telemetry.visit import Visit


class Passage:
    """The answer of one request as it passes.

    Attributes:
        visit: the request's measures.
        status: of the answer, 499 as long as there is none.
        is_stream: whether it is an event stream, whose parts are counted.
    """

    __slots__ = (
        "_clock",
        "_is_settled",
        "_last_part",
        "_metrics",
        "_request_id",
        "is_stream",
        "status",
        "visit",
    )

    def __init__(self, visit: Visit, request_id: str, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Start with nothing passed."""
        self.visit = visit
        self._request_id = request_id
        self._metrics = metrics
        self._clock = clock
        self._is_settled = False
        self._last_part: float | None = None
        self.is_stream = False
        self.status = 499

    def fields(self) -> Mapping[str, str]:
        """Return the header fields of every answer: the request's id and the key's limits as they stand."""
        return {HEADER: self._request_id, **self.visit.grant.headers()}

    def part(self, body: bytes) -> None:
        """Look at a part of the answer."""
        self.visit.look_at(body)
        if self.is_stream:
            visit, now = self.visit, self._clock()
            visit.parts += 1
            if self._last_part is not None and visit.model is not None:
                self._metrics.inter_token.series(visit.model).observe(now - self._last_part)
            self._last_part = now

    def settle(self) -> None:
        """End the grant with what was used, once; before the client knows that it is done and asks again."""
        if not self._is_settled:
            self._is_settled = True
            self.visit.grant.close(self.visit.used_tokens(self.status))
