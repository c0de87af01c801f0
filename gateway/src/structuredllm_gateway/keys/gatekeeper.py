"""Who may pass: the key of a request, its limits, and what it has used of them.

Owns the state of all limits, per process. No I/O: the key file and the time are given in. State is kept by
the entry's name, so a rotated hash or a changed limit does not give a client a fresh allowance.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Callable, Iterable, Mapping

from structuredllm_gateway.keys.buckets import Bucket, duration_text
from structuredllm_gateway.keys.errors import (
    ForbiddenError,
    ModelForbiddenError,
    RateLimitedError,
    UnknownKeyError,
)
from structuredllm_gateway.keys.hashing import digest_of
from structuredllm_gateway.keys.table import KeyEntry, KeyTable
from structuredllm_gateway.relay.caller import Caller

_MAX_TOKENS = re.compile(rb'"max_(?:completion_|output_)?tokens"\s*:\s*(\d{1,9})')
_BYTES_PER_TOKEN = 4
_CONCURRENCY_RETRY_SECONDS = 1.0
_LOOPBACK = ("127.", "::1", "::ffff:127.")


class Grant:
    """Leave for one request; the base class has no limits at all. Must be closed once.

    Attributes:
        caller: who asks, None when nobody is told apart.
        prompt_estimate: tokens of the request body, guessed; 0 where no tokens are limited.
    """

    caller: Caller | None = None
    prompt_estimate = 0

    def allows(self, model: str) -> bool:
        """Whether the model may be seen and asked."""
        return True

    def admit(self, model: str, body: bytes) -> None:
        """Check the model and reserve tokens for the request in `body`.

        Raises:
            ModelForbiddenError: the key is not for this model.
            RateLimitedError: the tokens of this minute are used up.
        """

    def headers(self) -> Mapping[str, str]:
        """Return the rate headers of the answer, as things stand."""
        return {}

    def close(self, used_tokens: int | None) -> None:
        """Settle: `used_tokens` (prompt and completion) replace what was reserved; None keeps it."""


class _Account:
    """What one key has used; outlives changes of its entry."""

    def __init__(self) -> None:
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.in_flight = 0
        self.caller: Caller | None = None
        self.allows_all = False

    def take_entry(self, entry: KeyEntry, now: float) -> None:
        self.caller = entry.caller
        self.allows_all = "*" in entry.models
        self.requests = _bucket(self.requests, entry.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, entry.tokens_per_minute, now)


class _KeyGrant(Grant):
    def __init__(
        self, entry: KeyEntry, account: _Account, clock: Callable[[], float], assumed_tokens: int
    ) -> None:
        self.caller = account.caller
        self._entry = entry
        self._account = account
        self._clock = clock
        self._assumed_tokens = assumed_tokens
        self._reserved = 0.0
        self.prompt_estimate = 0

    def allows(self, model: str) -> bool:
        return self._account.allows_all or self._entry.allows(model)

    def admit(self, model: str, body: bytes) -> None:
        if not self.allows(model):
            raise ModelForbiddenError(
                f"The key {self._entry.name!r} may not use the model {model[:128]!r}; GET /v1/models "
                "lists those it may.",
                param="model",
            )
        bucket = self._account.tokens
        if bucket is None:
            return
        asked = max((int(found) for found in _MAX_TOKENS.findall(body)), default=self._assumed_tokens)
        # More than a minute's worth could never be taken: such a request waits for a full bucket.
        self.prompt_estimate = len(body) // _BYTES_PER_TOKEN
        wanted = float(min(asked + self.prompt_estimate, bucket.per_minute))
        bucket.refill(self._clock())
        if bucket.level < wanted:
            raise self._limited(
                "tokens", f"{bucket.per_minute} tokens a minute", bucket.seconds_until(wanted)
            )
        bucket.level -= wanted
        self._reserved = wanted

    def headers(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if self._account.requests is None and self._account.tokens is None:
            return found
        now = self._clock()
        for name, bucket in (("requests", self._account.requests), ("tokens", self._account.tokens)):
            if bucket is not None:
                bucket.refill(now)
                found[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining)
                found[f"x-ratelimit-reset-{name}"] = duration_text(bucket.reset_seconds)
        return found

    def close(self, used_tokens: int | None) -> None:
        self._account.in_flight -= 1
        bucket = self._account.tokens
        if bucket is not None and used_tokens is not None:
            bucket.refill(self._clock())
            bucket.level = min(float(bucket.per_minute), bucket.level + self._reserved - used_tokens)

    def enter(self) -> None:
        """Take one request of the allowances."""
        entry, account = self._entry, self._account
        limit = entry.concurrent_requests
        if limit is not None and account.in_flight >= limit:
            raise self._limited("concurrency", f"{limit} requests at a time", _CONCURRENCY_RETRY_SECONDS)
        bucket = account.requests
        if bucket is not None:
            bucket.refill(self._clock())
            if bucket.level < 1:
                raise self._limited(
                    "requests", f"{bucket.per_minute} requests a minute", bucket.seconds_until(1)
                )
            bucket.level -= 1
        account.in_flight += 1

    def _limited(self, of: str, limit: str, wait: float) -> RateLimitedError:
        headers = {
            **self.headers(),
            "retry-after": str(max(1, math.ceil(wait))),
            "retry-after-ms": str(max(1, math.ceil(wait * 1000))),
        }
        return RateLimitedError(
            f"The key {self._entry.name!r} is limited to {limit}; try again in {duration_text(wait)}.",
            of=of,
            headers=headers,
        )


class Gatekeeper:
    """Lets requests in by their key, or with `table` None everyone."""

    def __init__(
        self,
        table: Callable[[], KeyTable] | None,
        *,
        clock: Callable[[], float],
        assumed_tokens: int = 512,
    ) -> None:
        """Take where the present keys are read; `assumed_tokens` stand for a request without a maximum."""
        self._table = table
        self._clock = clock
        self._assumed_tokens = assumed_tokens
        self._accounts: dict[str, _Account] = {}
        self._known: KeyTable | None = None

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return self._table is None

    def enter(self, headers: Iterable[tuple[bytes, bytes]], *, counted: bool) -> Grant:
        """Return the leave of a request with these raw headers; `counted` = it uses the request limits.

        Raises:
            UnknownKeyError: no key, or one that is not known.
            RateLimitedError: requests a minute or at a time are used up.
        """
        if self._table is None:
            return Grant()
        grant = self._grant(self._entry(headers))
        if not counted:
            return _Uncounted(grant)
        grant.enter()
        return grant

    def check_debug(self, headers: Iterable[tuple[bytes, bytes]], client: str | None) -> None:
        """Let only operators of the gateway look inside.

        With keys: a key whose entry has `debug: true`. Without: a client on the same host (a port-forward).

        Raises:
            UnknownKeyError: no key, or one that is not known.
            ForbiddenError: not for this client.
        """
        if self._table is None:
            if client is None or not client.startswith(_LOOPBACK):
                raise ForbiddenError(
                    "Debug routes of a gateway without keys answer only on its own host (port-forward)."
                )
            return
        entry = self._entry(headers)
        if not entry.debug:
            raise ForbiddenError(
                f"The key {entry.name!r} may not use debug routes; give its entry `debug: true`."
            )

    def _entry(self, headers: Iterable[tuple[bytes, bytes]]) -> KeyEntry:
        assert self._table is not None  # noqa: S101 - narrows the type: callers have looked
        table = self._table()
        if table is not self._known:
            self._take(table)
        given = b""
        for name, value in headers:
            if name == b"authorization":
                given = value
                break
        scheme, _, key = given.partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise UnknownKeyError("The request has no API key; send it as `Authorization: Bearer KEY`.")
        digest = digest_of(key.strip())
        entry = table.by_digest.get(digest)
        # The look-up is by a digest, whose bytes a client cannot steer, so its time says nothing of a key.
        if entry is not None:
            text = digest.hex()
            for known in entry.sha256:
                if hmac.compare_digest(text, known):
                    return entry
        raise UnknownKeyError("The API key is not known here.")

    def _grant(self, entry: KeyEntry) -> _KeyGrant:
        return _KeyGrant(entry, self._accounts[entry.name], self._clock, self._assumed_tokens)

    def _take(self, table: KeyTable) -> None:
        """Adopt new keys: changed limits hold at once, accounts of keys that are gone are dropped."""
        now = self._clock()
        kept = {name: account for name, account in self._accounts.items() if name in table.names}
        for entry in table.by_digest.values():
            kept.setdefault(entry.name, _Account()).take_entry(entry, now)
        self._accounts, self._known = kept, table


class _Uncounted(Grant):
    """A known key on a route that costs nothing, such as the list of models."""

    def __init__(self, grant: _KeyGrant) -> None:
        self.caller = grant.caller
        self._grant = grant

    def allows(self, model: str) -> bool:
        return self._grant.allows(model)


def _bucket(before: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if before is None:
        return Bucket(per_minute, now)
    before.change(per_minute, now)
    return before
