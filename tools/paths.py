"""Where tools keep what they make: the repository root and the per-user cache.

Owns path decisions only, so that a fresh clone on a machine that ran before is warm (the cache is outside
the clone) and so that tests can point everything at a temporary folder.
"""

import os
from pathlib import Path


def repo_root() -> Path:
    """Return the root of the working tree that this file belongs to."""
    return Path(__file__).resolve().parent.parent


def cache_dir(*parts: str) -> Path:
    """Return (and create) a folder below the user's cache for this project.

    `STRUCTUREDLLM_CACHE` overrides the place; otherwise `XDG_CACHE_HOME`, otherwise `~/.cache`.
    """
    override = os.environ.get("STRUCTUREDLLM_CACHE")
    base = (
        Path(override)
        if override
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structuredllm"
    )
    path = base.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path
