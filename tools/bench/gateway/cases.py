"""What is measured, in which amounts. Pure values."""

from dataclasses import dataclass

UPSTREAM_SECONDS = 0.02
FRAMES = 64
PACE_SECONDS = 0.02
P99_LIMIT_SECONDS = 0.01
"""How much longer than the engine's own time 99 of 100 answers may take for a rate to count."""

RATES: tuple[float, ...] = (
    *(100.0, 200.0, 400.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0),
    *(10_000.0, 12_000.0, 14_000.0, 16_000.0, 20_000.0),
)


@dataclass(frozen=True)
class Profile:
    """Amounts.

    Attributes:
        rounds: interleaved rounds of the latency and CPU cases.
        one_requests: requests a round, one after the other.
        closed_requests: requests a round over 16 connections, for CPU per request.
        slow_share: share of those amounts for gateways that take milliseconds a request.
        rate_seconds: length of one step of the frontier.
        rates: its steps.
        stream_counts: streams at once.
        stream_seconds: length of one stream case.
        memory_seconds: how long memory is watched under load.
    """

    name: str
    rounds: int
    one_requests: int
    closed_requests: int
    slow_share: float
    rate_seconds: float
    rates: tuple[float, ...]
    stream_counts: tuple[int, ...]
    stream_seconds: float
    memory_seconds: float


PROFILES = {
    "quick": Profile("quick", 3, 400, 1500, 0.05, 1.0, RATES[2::2], (1, 64, 512), 3.0, 10.0),
    "full": Profile("full", 10, 2000, 8000, 0.05, 5.0, RATES, (1, 64, 128, 256, 512), 10.0, 600.0),
    "tiny": Profile("tiny", 1, 100, 300, 0.1, 0.3, RATES[2:4], (1, 8), 1.5, 1.0),
}
