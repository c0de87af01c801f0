"""Endpoints and pools: which engines serve which model, as values, and the port that supplies them.

Owns the vocabulary of discovery; pure, must not import I/O. A snapshot is immutable, so a request decides
on one view from start to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class EndpointState(StrEnum):
    """What may be done with an endpoint."""

    SERVING = "serving"
    GATED = "gated"  # not ready, or not yet shown to answer structured requests
    TERMINATING = "terminating"  # gets nothing new, streams on it finish


class ValidationMode(StrEnum):
    """What happens to a wrong structured answer (spec.structuredOutput.validation)."""

    OFF = "Off"  # not looked at
    OBSERVE = "Observe"  # passed, named in a header, counted
    ENFORCE = "Enforce"  # refused


STRICTNESS: tuple[ValidationMode, ...] = (ValidationMode.OFF, ValidationMode.OBSERVE, ValidationMode.ENFORCE)


@dataclass(frozen=True)
class Endpoint:
    """One engine: `name` is unique, the replica in headers and metrics; `url` has no slash at its end."""

    name: str
    url: str
    state: EndpointState = EndpointState.SERVING


@dataclass(frozen=True)
class ModelPool:
    """All endpoints of one served model name; `backend` is their grammar backend, "" when not known."""

    model: str
    validation: ValidationMode
    endpoints: tuple[Endpoint, ...] = ()
    backend: str = ""

    @property
    def serving(self) -> tuple[Endpoint, ...]:
        """The endpoints that may get a request."""
        return tuple(e for e in self.endpoints if e.state is EndpointState.SERVING)


@dataclass(frozen=True)
class Snapshot:
    """What discovery knows now.

    Attributes:
        pools: by served model name.
        synced: whether discovery has seen everything at least once.
        stale: whether the source cannot be reached now; the pools are then the last ones known.
    """

    pools: Mapping[str, ModelPool] = field(default_factory=dict)
    synced: bool = False
    stale: bool = False


class EndpointSource(Protocol):
    """Supplies endpoints."""

    def snapshot(self) -> Snapshot:
        """Return the present view; cheap, called for every request."""
        ...

    async def run(self) -> None:
        """Keep the view up to date until cancelled."""
        ...
