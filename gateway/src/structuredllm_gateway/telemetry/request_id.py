"""Request ids: taken from the client when well-formed, else made; on every response.

Owns the header and what may be in it; the entrance sets it.
"""

from __future__ import annotations

import re

HEADER = "x-request-id"
SCOPE_KEY = "structuredllm.request_id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def is_well_formed(request_id: str) -> bool:
    """Whether a client's id may be used: short, and harmless in logs and headers."""
    return _WELL_FORMED.fullmatch(request_id) is not None
