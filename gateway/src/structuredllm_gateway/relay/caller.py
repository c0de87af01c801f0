"""Who asks, as far as the relay cares: a name and what differs for them.

Owns one value; how a caller is recognised (keys, open mode) is not known here. Must not import I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from structuredllm_gateway.upstream.endpoints import ValidationMode


@dataclass(frozen=True)
class Caller:
    """One caller.

    Attributes:
        name: the key's name, for logs; never the key.
        validation: what happens to wrong structured answers for this caller; None = as the model says.
    """

    name: str
    validation: ValidationMode | None = None
