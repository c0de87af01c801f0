"""Making and hashing keys: what the file holds, and the command `structuredllm-gateway hash-key`.

Owns the hash and the form of new keys. One unsalted SHA-256 is right for random keys and wrong for words
that people think of, so short keys are refused here.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

_PREFIX = "sllm-"
_MIN_CHARS = 24
_USAGE = """usage: structuredllm-gateway hash-key [--new] [--name NAME]

Prints the entry of the key file for a key read from standard input, or with --new for a new random key,
which is printed once on standard error. Put the entries as {"keys": [...]} into the Secret."""


def digest_of(key: bytes) -> bytes:
    """Return the 32 bytes under which a key is looked up."""
    return hashlib.sha256(key).digest()


def hash_key_command(
    arguments: Sequence[str],
    *,
    source: TextIO | None = None,
    token: Callable[[int], str] = secrets.token_urlsafe,
) -> int:
    """Run `hash-key`; return 0, or 2 when the arguments or the key cannot be used."""
    words, name = list(arguments), "client"
    if "--name" in words[:-1]:
        at = words.index("--name")
        name = words[at + 1]
        del words[at : at + 2]
    if words not in ([], ["--new"]):
        print(_USAGE, file=sys.stderr)
        return 2
    if words:
        key = _PREFIX + token(32)
        print(f"the new key, shown only now: {key}", file=sys.stderr)
    else:
        key = (source or sys.stdin).readline().strip()
        if len(key) < _MIN_CHARS or not key.isascii() or not key.isprintable():
            print(
                f"structuredllm-gateway: a key needs {_MIN_CHARS} printable ASCII characters or more, "
                "because its hash is not salted; use --new for a random one",
                file=sys.stderr,
            )
            return 2
    print(json.dumps({"name": name, "sha256": digest_of(key.encode()).hex()}))
    return 0
