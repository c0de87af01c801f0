"""What a person sees while a slow step runs: the step, a sign of life, the time it took.

Owns output only and imports nothing of this package.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Print one line at once, to stderr, so that stdout stays free for answers."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step and say how long it took, also when it fails."""
    say(f"cluster: {title} ...")
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"cluster: {title}: failed after {time.monotonic() - begin:.1f} s")
        raise
    say(f"cluster: {title}: done in {time.monotonic() - begin:.1f} s")
