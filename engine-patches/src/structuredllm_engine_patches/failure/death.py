"""What a front-end does after its engine died. Pure."""

from dataclasses import dataclass

LINGER_SECONDS = 1.0
"""So long the server still answers: /health with 503, waiting requests with their error, new ones too."""

LEAVE_SECONDS = 5.0
"""After so long the process ends whatever still holds it up: a client that does not read, a stuck child."""


@dataclass(frozen=True)
class EngineState:
    """What a front-end knows of its engine at one moment.

    Attributes:
        errored: upstream says that the engine cannot serve.
        failed_process: name of an engine core process that ended with an error; empty when none did.
        stopping: somebody asked for the end of the engine (a signal to the front-end): not a death.
    """

    errored: bool
    failed_process: str
    stopping: bool


def is_dead(state: EngineState) -> bool:
    """Return whether the engine died, as against being stopped: upstream's `errored` says yes to both."""
    return state.errored and (bool(state.failed_process) or not state.stopping)


def linger_left(*, seen_at: float, now: float) -> float:
    """Return how many seconds the server still has to answer; both times of one monotonic clock."""
    return max(0.0, seen_at + LINGER_SECONDS - now)
