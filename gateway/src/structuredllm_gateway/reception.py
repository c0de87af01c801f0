"""Who comes in: the request's id, its trace, its key, and what is answered to who may not pass.

Owns what is decided of a request before anything reads its body, for every way in which requests arrive (the
ASGI entrance, the connection's own). Must not import a web framework.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import structlog

from structuredllm_gateway.keys.errors import KeyRefusedError
from structuredllm_gateway.keys.gatekeeper import Gatekeeper, Grant
from structuredllm_gateway.openai.errors import error_bytes
from structuredllm_gateway.telemetry.metrics import OTHER, Metrics
from structuredllm_gateway.telemetry.request_id import HEADER, is_well_formed
from structuredllm_gateway.telemetry.trace import (
    TRACEPARENT,
    TRACESTATE,
    is_traceparent,
    new_traceparent,
    trace_id_of,
)

OPEN_PATHS = frozenset({"/health", "/healthz", "/ready", "/readyz"})
"""What asks for no key: the kubelet and load balancers have none."""

RawHeaders = list[tuple[bytes, bytes]]
_DEBUG = "/debug"
_ID_HEADER = HEADER.encode()


class Reception:
    """Names requests and lets them in."""

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
        *,
        new_id: Callable[[], str],
        rng: random.Random,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """Take who knows the keys; `new_id` makes ids for requests that bring none, `rng` those of traces."""
        self._gatekeeper = gatekeeper
        self._metrics = metrics
        self._new_id = new_id
        self._rng = rng
        self._log = log

    def identified(self, headers: RawHeaders) -> tuple[str, str, RawHeaders]:
        """Return request id, trace id and the headers; a missing or malformed traceparent is replaced."""
        given = traceparent = b""
        for name, value in headers:
            if name == _ID_HEADER:
                given = value
            elif name == TRACEPARENT:
                traceparent = value
        if not traceparent or not is_traceparent(traceparent):
            traceparent = new_traceparent(self._rng)
            dropped = (TRACEPARENT, TRACESTATE)
            headers = [item for item in headers if item[0] not in dropped]
            headers.append((TRACEPARENT, traceparent))
        text = given.decode("latin-1")
        request_id = text if text and is_well_formed(text) else self._new_id()
        return request_id, trace_id_of(traceparent), headers

    def admitted(self, method: str, path: str, headers: RawHeaders, client: Sequence[object] | None) -> Grant:
        """Return the leave of a request; `client` is its address and port.

        Raises:
            KeyRefusedError: it may not pass.
        """
        if path in OPEN_PATHS:
            return Grant()
        if path == _DEBUG or path.startswith(_DEBUG + "/"):
            self._gatekeeper.check_debug(headers, str(client[0]) if client else None)
            return Grant()
        return self.asked(headers, counted=method == "POST")

    def asked(self, headers: RawHeaders, *, counted: bool = True) -> Grant:
        """Return the leave of a request of the API; `counted` = it uses the limits of its key.

        Raises:
            KeyRefusedError: it may not pass.
        """
        return self._gatekeeper.enter(headers, counted=counted)

    def refusal(
        self, error: KeyRefusedError, path: str, request_id: str, trace_id: str
    ) -> tuple[dict[str, str], bytes]:
        """Count and log a refusal; return its headers and body."""
        self._metrics.refused_key(error, path)
        self._log.info(
            "request",
            request_id=request_id,
            trace_id=trace_id,
            path=path[:128],
            model=OTHER,
            status=error.status,
            outcome=error.outcome.value,
            error_code=error.code,
            reason=error.reason,
        )
        body = error_bytes(error, request_id)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            HEADER: request_id,
            "x-structuredllm-outcome": error.outcome.value,
            **error.headers,
        }
        return headers, body
