"""What is measured of one request while it passes: times apart, tokens, parts of a stream.

Owns the counters of one request. Must not import the relay's steps.
"""

from __future__ import annotations

import re

from structuredllm_gateway.keys.gatekeeper import Grant

SCOPE_KEY = "structuredllm.visit"
_USAGE = b'"usage"'
# The responses API calls them input and output.
_COUNTS = re.compile(rb'"(prompt|completion|input|output)_tokens"\s*:\s*(\d{1,12})')
# Of a whole answer only its end can hold the usage: engines write it after the choices.
_TAIL = 4096


class Visit:
    """The measures of one request.

    Attributes:
        grant: leave of the caller's key.
        trace_id: 32 hex digits, "" when unknown.
        model: metric label of the model, None until it is known.
        upstream_seconds: time spent waiting for engines.
        client_seconds: time spent waiting for the client: its body, and its reading of the answer.
        prompt_tokens, completion_tokens: the engine's usage; None when it gave none.
        parts: parts of a stream's answer that were sent.
    """

    __slots__ = (
        "client_seconds",
        "completion_tokens",
        "grant",
        "model",
        "parts",
        "prompt_tokens",
        "trace_id",
        "upstream_seconds",
    )

    def __init__(self, grant: Grant | None = None, trace_id: str = "") -> None:
        """Start with nothing seen."""
        self.grant = grant if grant is not None else Grant()
        self.trace_id = trace_id
        self.model: str | None = None
        self.upstream_seconds = 0.0
        self.client_seconds = 0.0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.parts = 0

    def own_seconds(self, total_seconds: float) -> float:
        """Return the part of a request's duration in which nobody was waited for."""
        return max(0.0, total_seconds - self.upstream_seconds - self.client_seconds)

    def look_at(self, data: bytes) -> None:
        """Take the usage out of a part of an answer, if it is there; costs one search where it is not.

        A key in raw quotes cannot occur inside of a JSON string, so no text of a model is taken for it.
        """
        at = data.rfind(_USAGE) if len(data) <= _TAIL else data.rfind(_USAGE, len(data) - _TAIL)
        if at < 0:
            return
        for kind, count in _COUNTS.findall(data, at):
            if kind in (b"prompt", b"input"):
                self.prompt_tokens = int(count)
            else:
                self.completion_tokens = int(count)

    def used_tokens(self, status: int) -> int | None:
        """Return what a request has used of its key's tokens; None when that cannot be told."""
        if self.prompt_tokens is not None or self.completion_tokens is not None:
            return (self.prompt_tokens or 0) + (self.completion_tokens or 0)
        if status != 200:
            return 0
        # A stream whose client did not ask for usage: engines send about one token in a part.
        return self.grant.prompt_estimate + self.parts if self.parts else None
