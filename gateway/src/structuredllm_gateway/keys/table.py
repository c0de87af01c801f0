"""The key file as values: which hashes are known, and what each may do.

Owns the format of the file and its errors; pure, must not import I/O. A key itself is never in the file: it
holds the SHA-256 of keys, which is enough for keys of 128 random bits and more (`keys.hashing` makes them).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from structuredllm_gateway.relay.caller import Caller
from structuredllm_gateway.upstream.endpoints import ValidationMode

MAX_FILE_BYTES = 1024 * 1024  # a Secret's own limit
_MAX_KEYS = 4096
_HASH = re.compile(r"[0-9a-f]{64}")
_MODES = {mode.value.lower(): mode for mode in ValidationMode}


class KeyFileError(ValueError):
    """The key file cannot be used; the message names the entry and what to do, never a hash."""


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_mode(value: Any) -> Any:
    return _MODES.get(value.lower(), value) if isinstance(value, str) else value


class KeyEntry(BaseModel):
    """One client of the file; the limits are per gateway process, None = none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    sha256: Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1, max_length=8)]
    models: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)] = ("*",)
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    validation: Annotated[ValidationMode, BeforeValidator(_as_mode)] | None = None
    debug: bool = False

    @model_validator(mode="after")
    def _hashes(self) -> KeyEntry:
        if not all(_HASH.fullmatch(item) for item in self.sha256):
            raise ValueError(
                "sha256 must be 64 lower-case hex digits; `structuredllm-gateway hash-key` prints them"
            )
        return self

    @property
    def caller(self) -> Caller:
        """The client for the relay."""
        return Caller(self.name, self.validation)

    def allows(self, model: str) -> bool:
        """Whether one of the globs in `models` matches (`*`, `?`, `[...]`; case matters)."""
        return any(fnmatch.fnmatchcase(model, glob) for glob in self.models)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[tuple[KeyEntry, ...], Field(max_length=_MAX_KEYS)]


@dataclass(frozen=True)
class KeyTable:
    """All known keys by the digest (32 bytes) of each."""

    by_digest: Mapping[bytes, KeyEntry] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def read_table(content: bytes) -> KeyTable:
    """Read the file: JSON or YAML, `{"keys": [{"name", "sha256", ...}]}`.

    Raises:
        KeyFileError: not of that form, a name or a hash twice, or too large.
    """
    if len(content) > MAX_FILE_BYTES:
        raise KeyFileError(f"the key file is larger than {MAX_FILE_BYTES} bytes")
    try:
        parsed = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        place = f" near line {where.line + 1}" if where is not None else ""
        raise KeyFileError(f"the key file is neither JSON nor YAML{place}") from error
    try:
        entries = _File.model_validate(parsed).keys
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = "/" + "/".join(str(part) for part in first["loc"])
        raise KeyFileError(f"the key file at {place}: {first['msg']}") from error
    by_digest: dict[bytes, KeyEntry] = {}
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise KeyFileError(f"the key file has two entries of the name {entry.name!r}; give each its own")
        names.add(entry.name)
        for text in entry.sha256:
            digest = bytes.fromhex(text)
            if digest in by_digest:
                raise KeyFileError(
                    f"the key file gives one hash to {by_digest[digest].name!r} and to {entry.name!r}; "
                    "make a new key"
                )
            by_digest[digest] = entry
    return KeyTable(by_digest, frozenset(names))
