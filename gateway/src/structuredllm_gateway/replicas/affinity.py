"""What keeps requests together: the first bytes of a prompt, or a session.

Owns the key of a request; pure. The body is searched, not parsed: a key that is sometimes taken from the
wrong place costs a cache hit, parsing costs every request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

from structuredllm_gateway.upstream.endpoints import PickPolicy

_PROMPT = re.compile(rb'"(?:messages|prompt|input)"\s*:\s*')
# An escaped quote inside of a text cannot begin the name, and a schema's property `user` is no string.
_USER = re.compile(rb'"user"\s*:\s*"((?:[^"\\]|\\.){1,256})"')


def affinity_key(
    policy: PickPolicy, body: bytes, headers: Mapping[str, str], *, prefix_bytes: int, session_header: str
) -> int | None:
    """Return the request's key as 64 bits, the same in every gateway; None when it has none.

    Args:
        policy: what to look at.
        body: the request's body as it came.
        headers: its headers, lower-case names.
        prefix_bytes: how much of the prompt counts.
        session_header: lower-case name of the session header; it wins over `user`.
    """
    if policy is PickPolicy.LEAST_OUTSTANDING:
        return None
    if policy is PickPolicy.PREFIX_HASH:
        found = _PROMPT.search(body)
        return None if found is None else hash64(body[found.end() : found.end() + prefix_bytes])
    session = headers.get(session_header)
    if session:
        return hash64(session.encode("latin-1", "replace")[:256])
    user = _USER.search(body)
    return None if user is None else hash64(user.group(1))


def hash64(data: bytes) -> int:
    """Return 64 bits that depend on `data` alone; Python's own hash differs between processes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
