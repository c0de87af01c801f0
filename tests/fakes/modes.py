"""What a fake engine does: its modes and the knobs of a script.

Owns the vocabulary only; the sockets are in `fake_engine`, the texts in `answers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How the fake engine treats completions. `/health` answers 200 in every mode but DEAD."""

    HEALTHY = "healthy"
    COLD_REJECT = "cold-reject"  # the first `script.rejects` requests with an unseen schema: grammar reject
    ALWAYS_REJECT = "always-reject"  # every structured request: grammar reject
    HANG = "hang"  # completions never answer
    HANG_MID_STREAM = "hang-mid-stream"  # the role chunk and one piece, then silence; not streamed: hang
    INVALID_JSON = (
        "invalid-json"  # structured: starts with a doubled brace, like a mask that is one token old
    )
    SCHEMA_VIOLATION = "schema-violation"  # structured: JSON that does not satisfy the schema
    TRAILING_TEXT = "trailing-text"  # structured: the right JSON, then prose
    TRUNCATED = "truncated"  # structured: half of the answer, finish_reason length
    EMPTY = "empty"  # structured: no content, finish_reason stop
    SLOW = "slow"  # right answers after `script.delay_seconds`
    DEAD = "dead"  # closes every connection of the API port without a byte
    DEAD_MID_STREAM = "dead-mid-stream"  # closes the connection after the first piece; not streamed: at once
    PLAIN_500 = "plain-500"  # every completion: HTTP 500, text/plain body (not the shape of a grammar reject)
    UNSTRUCTURED_500 = "unstructured-500"  # only requests without a schema fail, structured ones are healthy
    BAD_REQUEST = "bad-request"  # every completion: HTTP 400 in OpenAI's shape
    OVERLOADED = "overloaded"  # every completion: HTTP 503 with Retry-After: 1


@dataclass(frozen=True)
class FakeScript:
    """Knobs of a fake engine.

    Attributes:
        per_request: modes of the first completions in order of arrival; after them the engine's mode holds.
        rejects: how many unseen schemas COLD_REJECT rejects; None = each one. A rejected one is seen.
        delay_seconds: pause before an answer in mode SLOW.
        chunk_chars: characters per streamed piece.
        chunk_delay_seconds: pause between streamed pieces, in every mode.
        hold_until_in_flight: completions wait until this many are in flight at once, then all go
            on: a caller with less concurrency never gets an answer. 0 = off.
        api_key: when set, /v1 requests without `Authorization: Bearer <api_key>` get 401.
        models: names that /v1/models lists and completions accept; empty = the engine's `model` alone.
        reject_after_chars: characters streamed before a grammar reject ends the stream.
        names_causes: a grammar reject says so, as an engine with the patch package does.
    """

    per_request: tuple[Mode, ...] = ()
    rejects: int | None = 8
    delay_seconds: float = 0.2
    chunk_chars: int = 8
    chunk_delay_seconds: float = 0.0
    hold_until_in_flight: int = 0
    api_key: str | None = None
    models: tuple[str, ...] = ()
    reject_after_chars: int = 0
    names_causes: bool = False
