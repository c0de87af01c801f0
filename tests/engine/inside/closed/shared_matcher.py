"""Runs alone: two threads drive grammar matchers for some seconds, one shared by both or one each.

`python shared_matcher.py shared|own SECONDS` prints `{"accepted": n, "rejected": n}`; a shared matcher may
crash the process instead. A rejected token is one that the matcher's own mask allowed a moment before.
"""

import json
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import torch
import xgrammar

THREADS = 2
WORDS = ['{"', '":', '","', '"}', "[[", "]]", "true", "false", "null", "12", "the", " and "]
VOCABULARY = [chr(code) for code in range(32, 127)] + WORDS + ["</s>"]


def make_matcher() -> Any:
    """Return a matcher of any JSON."""
    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[len(VOCABULARY) - 1])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_builtin_json_grammar()
    return xgrammar.GrammarMatcher(compiled)


def drive(matcher: Any, deadline: float, seed: int, counts: Counter[str]) -> None:
    """Sample from the matcher's mask until the deadline."""
    rng = random.Random(seed)  # noqa: S311 - a test's choices
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    bits = torch.arange(32, dtype=torch.int32)
    while time.monotonic() < deadline:
        if matcher.is_terminated():
            matcher.reset()
        matcher.fill_next_token_bitmask(mask)
        allowed = ((mask[0].unsqueeze(1) >> bits) & 1).flatten().nonzero().flatten().tolist()
        choices = [token for token in allowed if token < len(VOCABULARY)]
        if not choices:
            matcher.reset()
            continue
        counts["accepted" if matcher.accept_token(rng.choice(choices)) else "rejected"] += 1


def main(mode: str, seconds: float) -> None:
    """Drive the matchers and print what happened."""
    one = make_matcher()
    counts: Counter[str] = Counter(accepted=0, rejected=0)
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=drive, args=(one if mode == "shared" else make_matcher(), deadline, seed, counts)
        )
        for seed in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
