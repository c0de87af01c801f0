"""Clients of an engine that use each connection once."""

import httpx

ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=0)
"""A kept connection can be closed under a request: by the server, after its own limit of idle time, and by
httpcore's pool, which closes expired connections that it has just given to another task. A test must not
take either for an answer that the engine lost."""


def engine_client(url: str, *, seconds: float) -> httpx.AsyncClient:
    """Return a client for any number of requests at once; `seconds` is the limit of each wait."""
    return httpx.AsyncClient(base_url=url, timeout=seconds, limits=ONCE)
