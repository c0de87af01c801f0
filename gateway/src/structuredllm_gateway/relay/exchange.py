"""One client request as values: what came in, what is known of it on the way, what a try gave.

Owns the data that the relay's parts hand to each other; must not import I/O. Only `Record` is changed once it
is made; the others are not `frozen` because that costs every request some microseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from structuredllm_gateway.errors import GatewayError
from structuredllm_gateway.openai.requests import CompletionRequest
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.relay.caller import Caller
from structuredllm_gateway.telemetry.visit import Visit
from structuredllm_gateway.upstream.endpoints import ModelPool, ValidationMode
from structuredllm_gateway.validation.expectation import Expectation
from structuredllm_gateway.validation.outcomes import Outcome

__all__ = [
    "Answer",
    "Exchange",
    "Incoming",
    "Record",
    "Route",
    "Sink",
    "TryResult",
    "response_headers",
]


class Sink(Protocol):
    """Where the answer goes: one HTTP response. `started` = its head is sent, it cannot be taken back."""

    started: bool

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        ...

    async def end(self) -> None:
        """End the body."""
        ...


@dataclass(slots=True)
class Incoming:
    """A request as it came: its route, id, headers (lower-case names), and its body or how to get it.

    `caller` is who asks, None when nobody is told apart; `visit` is what is measured on the way.
    """

    route: Route
    request_id: str
    headers: Mapping[str, str]
    read_body: Callable[[], Awaitable[bytes]] | None = None
    caller: Caller | None = None
    visit: Visit = field(default_factory=Visit)
    body: bytes = b""


@dataclass(slots=True)
class Record:
    """What is known of a request so far; the only mutable state of one, read once when it ends."""

    started: float
    outcome: Outcome = Outcome.CLIENT_CLOSED
    status: int = 499
    model: str | None = None
    stream: bool = False
    structured: bool = False
    attempts: int = 0
    replica: str | None = None
    fsm_errors: int = 0
    first_token_seconds: float | None = None
    schema_key: str | None = None
    error_code: str | None = None
    retried_for: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unvalidated: str = ""
    repair: str | None = None


@dataclass(slots=True)
class Exchange:
    """An admitted request: everything that a try needs.

    `deadline` is on the injected clock. `expected` is None when nothing is asked of the answer. `is_repair`:
    this is the one further try in which the model is told what was wrong; nothing follows it. `raw_chars`:
    how much of a refused answer the client wants to see. `mode` is the validation mode: the caller's own,
    else the model's. `is_judged`: whether the answer's text is looked at.
    """

    incoming: Incoming
    request: CompletionRequest
    body: bytes
    pool: ModelPool
    expected: Expectation | None
    deadline: float
    record: Record
    is_repair: bool = False
    raw_chars: int = 0
    mode: ValidationMode = field(init=False)
    is_judged: bool = field(init=False)

    def __post_init__(self) -> None:
        """Decide once what is asked several times."""
        caller = self.incoming.caller
        own = caller.validation if caller is not None else None
        self.mode = self.pool.validation if own is None else own
        self.is_judged = self.expected is not None and self.mode is not ValidationMode.OFF


@dataclass(slots=True)
class Answer:
    """A whole answer that is not sent yet."""

    status: int
    body: bytes
    content_type: str


@dataclass(slots=True)
class TryResult:
    """What one try gave.

    Attributes:
        outcome: its class.
        answer: what to send; None when `error` is set or the answer is already sent.
        error: why there is none to send.
        committed: whether the client already got bytes (then the try also sent the rest).
        upstream_status: HTTP status of the replica, None without an answer.
    """

    outcome: Outcome
    answer: Answer | None = None
    error: GatewayError | None = None
    committed: bool = False
    upstream_status: int | None = None


def response_headers(record: Record, outcome: Outcome | None) -> dict[str, str]:
    """Return the gateway's own headers; `outcome` None = not known yet (a stream that has begun)."""
    headers = {
        "x-structuredllm-attempts": str(record.attempts),
        "x-structuredllm-fsm-errors": str(record.fsm_errors),
    }
    if outcome is not None:
        headers["x-structuredllm-outcome"] = outcome.value
    if record.replica is not None:
        headers["x-structuredllm-replica"] = record.replica
    if record.repair is not None:
        headers["x-structuredllm-repair"] = record.repair
    if record.warnings:
        headers["x-structuredllm-warning"] = "; ".join(record.warnings)
    return headers
