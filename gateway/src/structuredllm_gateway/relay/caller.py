"""Who asks, as far as the relay needs to know.

Owns the value that an entrance (keys, or none) hands to the relay; must not import I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from structuredllm_gateway.upstream.endpoints import ValidationMode


@dataclass(frozen=True)
class Caller:
    """A client as its key names it. `validation` overrides the model's mode; None = the model's own."""

    name: str
    validation: ValidationMode | None = None


ANYONE = Caller("")
"""The caller of a gateway without keys."""
