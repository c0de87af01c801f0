"""The schemas of a burst: small, bounded, of several shapes, each one never seen by the engine before.

Pure: the same seed and index give the same schema. Knows nothing of requests or HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

SHAPES = 6


def schema_for(seed: str, index: int) -> Mapping[str, Any]:
    """Return the JSON schema number `index` of the burst `seed`.

    Every object is closed (`additionalProperties: false`) and every property required; strings are enums,
    integers 0..150, arrays of fixed length. So an answer has at most 96 characters, and even a model with
    random weights ends it under the grammar. A property name carries a tag of the seed: engines key their
    cache of compiled grammars by the schema's text, hence each schema is compiled anew.
    """
    digest = hashlib.sha256(f"{seed}\x00{index}".encode()).digest()
    tag = digest[:5].hex()
    words = [f"{prefix}{digest[5 + i]:02x}" for i, prefix in enumerate(("lo", "mid", "hi"))]
    enum: dict[str, Any] = {"type": "string", "enum": words}
    low = digest[8] % 50
    integer: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + 1 + digest[9] % 100}
    boolean: dict[str, Any] = {"type": "boolean"}
    match index % SHAPES:
        case 0:
            return _closed({f"kind_{tag}": enum, "age": integer})
        case 1:
            return _closed({f"ok_{tag}": boolean, "count": integer, "done": boolean})
        case 2:
            return _closed({f"list_{tag}": _fixed(integer, 2 + digest[10] % 3)})
        case 3:
            return _closed({f"item_{tag}": _closed({"kind": enum, "size": integer}), "ok": boolean})
        case 4:
            return _closed({f"tags_{tag}": _fixed(enum, 2), "ok": boolean})
        case _:
            return _closed({f"age_{tag}": {"anyOf": [integer, {"type": "null"}]}, "kind": enum})


def tag_of(seed: str, index: int) -> int:
    """Return a 31-bit number of the seed and index, the sampling seed of a request."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x01{index}".encode()).digest()[:4], "big") >> 1


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _fixed(items: Mapping[str, Any], length: int) -> dict[str, Any]:
    return {"type": "array", "items": dict(items), "minItems": length, "maxItems": length}
