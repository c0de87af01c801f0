"""What a compile worker is asked to do, and what comes back. Pure."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Task(StrEnum):
    """What is wanted of a grammar."""

    PARSE = "parse"
    """Only whether it is one; needs no tokenizer. What vLLM's front-end does with every request."""

    COMPILE = "compile"
    """The compiled grammar, serialized."""


class Kind(StrEnum):
    """The language of a grammar."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    LARK = "lark"
    STRUCTURAL_TAG = "structural_tag"
    STRUCTURAL_TAG_TRIGGERS = "structural_tag_triggers"
    """The older form: JSON of `{"tags": [{"begin", "schema", "end"}], "triggers": [...]}`."""

    GUIDANCE = "guidance"
    """A grammar as llguidance takes it; can only be parsed."""


@dataclass(frozen=True)
class CompileJob:
    """One grammar; equal jobs have equal results, so a job is its own cache key.

    Attributes:
        task: see `Task`.
        kind: see `Kind`.
        spec: the grammar's text.
        options: keyword arguments of the compiler as JSON text; `{}` for none.
    """

    task: Task
    kind: Kind
    spec: str
    options: str = "{}"

    def header(self, job_id: int) -> dict[str, Any]:
        """Return the header of the frame that carries the job; the blob is the spec."""
        return {"id": job_id, "task": self.task, "kind": self.kind, "options": self.options}


def job_of(header: dict[str, Any], blob: bytes) -> CompileJob:
    """Return the job of a frame.

    Raises:
        KeyError, ValueError: it is not the frame of a job.
    """
    options = str(header["options"])
    json.loads(options)
    return CompileJob(Task(header["task"]), Kind(header["kind"]), from_bytes(blob), options)


def to_bytes(spec: str) -> bytes:
    """Return the bytes of a spec; a lone surrogate, which JSON can carry, is kept as it is."""
    return spec.encode("utf-8", "surrogatepass")


def from_bytes(blob: bytes) -> str:
    """Return the spec of `to_bytes`."""
    return blob.decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class CompileResult:
    """A finished job.

    Attributes:
        blob: the serialized grammar; empty for a parse and for one to be compiled here.
        seconds: time that the worker took.
        here: it compiles within the limits, and doing that again in the caller's process is cheaper than
            sending it.
    """

    blob: bytes
    seconds: float
    here: bool = False
