"""Notices when two threads are inside one grammar at the same time."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

OPERATIONS = ("accept_tokens", "validate_tokens", "rollback", "fill_bitmask", "reset")
LINGER_SECONDS = 0.0002
"""Held inside each operation, so that an overlap is not a matter of luck."""


@dataclass
class Watch:
    """What was seen.

    Attributes:
        overlaps: operations that began while another thread was inside the same grammar.
        threads: by grammar, the threads that were ever inside it.
        calls: number of operations.
    """

    overlaps: list[str] = field(default_factory=list)
    threads: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    calls: int = 0


@contextmanager
def watched_grammars() -> Iterator[Watch]:
    """Watch every `XgrammarGrammar` of the process for the length of the block."""
    watch, lock = Watch(), threading.Lock()
    inside: dict[int, int] = {}
    originals = {name: getattr(XgrammarGrammar, name) for name in OPERATIONS}

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(grammar: Any, *args: Any, **kwargs: Any) -> Any:
            key, thread = id(grammar), threading.get_ident()
            with lock:
                watch.calls += 1
                watch.threads[key].add(thread)
                owner = inside.setdefault(key, thread)
                if owner != thread:
                    watch.overlaps.append(name)
            try:
                time.sleep(LINGER_SECONDS)
                return original(grammar, *args, **kwargs)
            finally:
                with lock:
                    if owner == thread:
                        inside.pop(key, None)

        return operation

    for name, original in originals.items():
        setattr(XgrammarGrammar, name, watched(name, original))
    try:
        yield watch
    finally:
        for name, original in originals.items():
            setattr(XgrammarGrammar, name, original)
