"""Grammars compiled before, and grammars that failed, bounded in bytes and in number. Pure, not thread-safe.

vLLM's own cache lives in the compiler that compile workers replace (`VLLM_XGRAMMAR_CACHE_MB`); this one takes
its place and its limit. Failures are kept too: sending the same bomb again must not cost another timeout.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class _Failed:
    error: Exception
    until: float


class CompileCache(Generic[Key, Value]):
    """The least recently used grammars go first.

    Args:
        max_bytes: bound of the sum of the sizes.
        max_failures: bound of the number of failures.
        failure_seconds: for how long a failure is remembered.
    """

    def __init__(self, max_bytes: int, max_failures: int = 256, failure_seconds: float = 60.0) -> None:
        self._max_bytes = max_bytes
        self._max_failures = max_failures
        self._failure_seconds = failure_seconds
        self._found: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._failed: OrderedDict[Key, _Failed] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Key) -> Value | None:
        """Return the grammar, or None."""
        entry = self._found.get(key)
        if entry is None:
            return None
        self._found.move_to_end(key)
        return entry[0]

    def failure(self, key: Key, now: float) -> Exception | None:
        """Return the error of a failed compilation that is still remembered, or None."""
        failed = self._failed.get(key)
        if failed is None:
            return None
        if now >= failed.until:
            del self._failed[key]
            return None
        return failed.error

    def put(self, key: Key, value: Value, size_bytes: int) -> None:
        """Keep a grammar; one larger than the whole cache is not kept."""
        previous = self._found.pop(key, None)
        if previous is not None:
            self.size_bytes -= previous[1]
        if size_bytes > self._max_bytes:
            return
        self._found[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes:
            _, (_, freed) = self._found.popitem(last=False)
            self.size_bytes -= freed

    def forget(self, value: Value) -> Key | None:
        """Drop a grammar and return its key; None for one that is not kept."""
        for key, (kept, size_bytes) in self._found.items():
            if kept is value:
                del self._found[key]
                self.size_bytes -= size_bytes
                return key
        return None

    def put_failure(self, key: Key, error: Exception, now: float) -> None:
        """Remember a failure."""
        self._failed.pop(key, None)
        self._failed[key] = _Failed(error, now + self._failure_seconds)
        while len(self._failed) > self._max_failures:
            self._failed.popitem(last=False)
