"""Endpoints and pools: which engines serve which model, as values, and the port that supplies them.

Owns the vocabulary of discovery; pure, must not import I/O. A snapshot is immutable, so a request decides
on one view from start to end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class PickPolicy(StrEnum):
    """How a model's replicas are picked (spec.routing.policy)."""

    LEAST_OUTSTANDING = "LeastOutstanding"
    PREFIX_HASH = "PrefixHash"  # same start of the prompt, same replica: its prefix cache is warm there
    SESSION = "Session"  # same session header or `user`, same replica


class StreamDelivery(StrEnum):
    """How a structured stream reaches its client (spec.structuredOutput.streaming)."""

    TRAILING = "Trailing"  # at once, the verdict after it
    BUFFER = "Buffer"  # once it is judged


class GrammarBackend(StrEnum):
    """Grammar backends of the engine (spec.structuredOutput.backend)."""

    AUTO = "auto"  # vLLM: xgrammar, and guidance where its gate stops a schema
    XGRAMMAR = "xgrammar"
    GUIDANCE = "guidance"


@dataclass(frozen=True)
class StructuredPolicy:
    """What the resources of one model say of its structured answers, beside the validation mode.

    Attributes:
        streaming: how streams are delivered.
        repair: whether a wrong answer is asked for once more, with its violation told to the model.
        backends: what makes the grammars.
    """

    streaming: StreamDelivery = StreamDelivery.TRAILING
    repair: bool = False
    backends: frozenset[GrammarBackend] = frozenset({GrammarBackend.AUTO})

    def joined(self, other: StructuredPolicy) -> StructuredPolicy:
        """Return what holds for a pool of two resources: Buffer before Trailing, repair if both want it."""
        held = StreamDelivery.BUFFER in (self.streaming, other.streaming)
        return StructuredPolicy(
            StreamDelivery.BUFFER if held else StreamDelivery.TRAILING,
            self.repair and other.repair,
            self.backends | other.backends,
        )


@dataclass(frozen=True)
class Endpoint:
    """One engine.

    Attributes:
        name: unique within its model, the replica in headers and metrics.
        url: without a slash at its end.
        state: what may be done with it.
        namespace: of its pod, "" outside of Kubernetes.
        incarnation: changes with the engine's process: what is known of one does not hold for the next.
    """

    name: str
    url: str
    state: EndpointState = EndpointState.SERVING
    namespace: str = field(default="", compare=False)
    incarnation: str = field(default="", compare=False)


@dataclass(frozen=True)
class ModelPool:
    """All endpoints of one served model name, and what their resources say of them.

    `policy` None = the gateway's own.
    """

    model: str
    validation: ValidationMode
    endpoints: tuple[Endpoint, ...] = ()
    structured: StructuredPolicy = StructuredPolicy()
    policy: PickPolicy | None = None

    @property
    def backend(self) -> str:
        """The engines' grammar backend; `mixed` when they have several."""
        return next(iter(self.structured.backends)).value if len(self.structured.backends) == 1 else "mixed"

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

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after every change of the view; it must not block."""
        ...

    def suspect(self, endpoint: Endpoint) -> None:
        """An endpoint could not be reached: look at it soon, where that is the source's business."""
        ...

    async def run(self) -> None:
        """Keep the view up to date until cancelled."""
        ...
