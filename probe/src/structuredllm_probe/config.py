"""The settings of one burst and their limits. Pure; imports nothing but the errors."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from structuredllm_probe.errors import ConfigError

MAX_REQUESTS = 10_000
MAX_CONCURRENCY = 1_024
MAX_TIMEOUT_SECONDS = 3_600.0
MAX_TOKENS = 4_096


@dataclass(frozen=True, kw_only=True)
class BurstConfig:
    """What to send.

    Attributes:
        requests: all requests of the burst, plain ones included, 1..10000.
        concurrency: requests in flight at once, 1..1024. It must exceed the engine's pipeline depth, or no
            batch ever waits behind another one and an order fault cannot show.
        plain_share: part of the requests without a schema, 0 <= x < 1. They put steps into the pipeline that
            a structured request takes no part in, which is what a mask gets stale from.
        stream_share: part of the requests that is streamed, 0..1.
        timeout_seconds: limit of the whole burst in seconds, > 0, at most 3600.
        max_tokens: limit of a structured answer in tokens, 1..4096. Every answer has at most 96 characters.
        seed: makes the schemas unique: use another one for every burst, or the engine has compiled the
            grammars before and the burst is not cold.
    """

    requests: int = 24
    concurrency: int = 24
    plain_share: float = 0.25
    stream_share: float = 0.5
    timeout_seconds: float = 120.0
    max_tokens: int = 96
    seed: str

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of range.
        """
        _check("requests", self.requests, 1 <= self.requests <= MAX_REQUESTS, f"1..{MAX_REQUESTS}")
        _check(
            "concurrency", self.concurrency, 1 <= self.concurrency <= MAX_CONCURRENCY, f"1..{MAX_CONCURRENCY}"
        )
        _check("plain_share", self.plain_share, 0 <= self.plain_share < 1, "0 <= x < 1")
        _check("stream_share", self.stream_share, 0 <= self.stream_share <= 1, "0..1")
        timeout_fits = 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS
        _check("timeout_seconds", self.timeout_seconds, timeout_fits, f"0 < x <= {MAX_TIMEOUT_SECONDS:g}")
        _check("max_tokens", self.max_tokens, 1 <= self.max_tokens <= MAX_TOKENS, f"1..{MAX_TOKENS}")
        _check("seed", self.seed, 0 < len(self.seed) <= 256, "1..256 characters")


def server_root(base_url: str) -> str:
    """Return `base_url` without a slash or `/v1` at its end, so that both usual forms work.

    Raises:
        ConfigError: not an http(s) URL with a host.
    """
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query
        _ = parts.port  # raises ValueError when it is not a port number
    except ValueError as error:
        raise ConfigError(f"URL {base_url!r}: {error}; give something like http://localhost:8000") from error
    if not usable:
        raise ConfigError(f"URL {base_url!r} is not usable: give something like http://localhost:8000")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def _check(name: str, value: object, fits: bool, allowed: str) -> None:
    if not fits:
        raise ConfigError(f"{name} = {value!r} is out of range: allowed is {allowed}")
