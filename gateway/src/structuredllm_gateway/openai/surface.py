"""The relayed routes of the API, and what differs between them.

Owns the list: a route that is not in it is not relayed (engines have administrative routes too). Pure: must
not import I/O.
"""

from __future__ import annotations

from enum import StrEnum


class Route(StrEnum):
    """The relayed routes; the value is the metric label."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"

    @property
    def path(self) -> str:
        """Path at the gateway and at the engine."""
        return "/v1/chat/completions" if self is Route.CHAT else f"/v1/{self.value}"

    @property
    def generates(self) -> bool:
        """Whether its answers are text, which may be streamed and may be asked for in a structure."""
        return self is not Route.EMBEDDINGS
