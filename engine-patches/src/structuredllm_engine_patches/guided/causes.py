"""Why a structured request ended without an answer: the causes, and how one travels. Pure.

vLLM has one word for all of them: finish reason "error", which its front-end turns into an anonymous
"Internal server error". The cause travels from the engine core to the front-end in the stop reason of the
request's last output, a field that exists and is a string there (vLLM 0.32, `EngineCoreOutput.stop_reason`),
and becomes the body of the client's error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PREFIX = "structuredllm:"
"""Begins a stop reason that is a cause. Read only next to the finish reason "error", so that a client's stop
string cannot be taken for one."""

MAX_DETAIL = 300
"""Characters; a detail can quote a client's schema, and it travels to logs and to clients."""


class Cause(StrEnum):
    """What ended the request; the value is the `type` and the `code` of the client's error."""

    GRAMMAR_REJECTED = "grammar_rejected"
    """The grammar refused a token that the engine had sampled, and recovery was not possible."""

    GRAMMAR_DEAD_END = "grammar_dead_end"
    """The grammar allows no token at all and has not ended: it cannot be satisfied."""

    GRAMMAR_UNSUPPORTED = "grammar_unsupported"
    """The grammar backend cannot enforce a keyword or construct."""

    GRAMMAR_COMPILE_FAILED = "grammar_compile_failed"
    """The schema, regex or grammar does not compile."""

    GRAMMAR_COMPILE_TIMEOUT = "grammar_compile_timeout"
    """The compilation took longer than its limit."""

    GRAMMAR_COMPILE_MEMORY = "grammar_compile_memory"
    """The compilation needed more memory than its limit."""

    GRAMMAR_COMPILER_UNAVAILABLE = "grammar_compiler_unavailable"
    """The compilation never ran or its process was lost; the request may be sent again."""


@dataclass(frozen=True)
class Meaning:
    """What a cause means for the client.

    Attributes:
        status: HTTP status; 4xx where the request itself is at fault.
        message: one sentence for the client.
    """

    status: int
    message: str


MEANINGS: Mapping[Cause, Meaning] = {
    Cause.GRAMMAR_REJECTED: Meaning(
        500,
        "The request's grammar refused a token that the engine had sampled; the answer was not completed.",
    ),
    Cause.GRAMMAR_DEAD_END: Meaning(
        400,
        "The request's grammar allows no further token and has not ended: no answer can satisfy it.",
    ),
    Cause.GRAMMAR_UNSUPPORTED: Meaning(
        400, "The request's grammar uses something that the grammar backend cannot enforce."
    ),
    Cause.GRAMMAR_COMPILE_FAILED: Meaning(400, "The request's grammar could not be compiled."),
    Cause.GRAMMAR_COMPILE_TIMEOUT: Meaning(
        400, "The request's grammar took longer to compile than the engine allows."
    ),
    Cause.GRAMMAR_COMPILE_MEMORY: Meaning(
        400, "The request's grammar needed more memory to compile than the engine allows."
    ),
    Cause.GRAMMAR_COMPILER_UNAVAILABLE: Meaning(
        503, "The engine could not compile the request's grammar at this time; send the request again."
    ),
}


@dataclass(frozen=True)
class Failure:
    """A cause with what is known about this one case.

    Attributes:
        cause: see `Cause`.
        detail: text for people on one line, at most `MAX_DETAIL` characters; may be empty.
    """

    cause: Cause
    detail: str = ""

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return MEANINGS[self.cause].status

    @property
    def message(self) -> str:
        """Return the message for the client."""
        meaning = MEANINGS[self.cause].message
        return f"{meaning} {self.detail}" if self.detail else meaning


class GrammarFailureError(Exception):
    """Raised by whoever knows the cause (a compile worker, say); `failure_of` reads it.

    Attributes:
        failure: the cause and its detail.
    """

    def __init__(self, cause: Cause, detail: str = "") -> None:
        """Bound the detail to one line of `MAX_DETAIL` characters."""
        self.failure = Failure(cause, one_line(detail))
        super().__init__(self.failure.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way out of a compile worker's process."""
        return type(self), (self.failure.cause, self.failure.detail)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an error of a compilation, or the error that caused it, stands for."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GrammarFailureError):
            # One whose words alone are known has been put into the outer error's words.
            if cause is error or cause.failure.cause is not Cause.GRAMMAR_COMPILE_FAILED:
                return cause.failure
            break
        cause = cause.__cause__
    text = one_line(str(error))
    return Failure(_cause_of_words(error, text.lower()), text)


def encode(failure: Failure) -> str:
    """Return a stop reason that says why the request ended."""
    detail = one_line(failure.detail)
    return f"{PREFIX}{failure.cause}:{detail}" if detail else f"{PREFIX}{failure.cause}"


def decode(stop_reason: object) -> Failure | None:
    """Return the failure of a stop reason; None for anything else that a stop reason can be."""
    if not isinstance(stop_reason, str) or not stop_reason.startswith(PREFIX):
        return None
    name, _, detail = stop_reason[len(PREFIX) :].partition(":")
    try:
        return Failure(Cause(name), detail)
    except ValueError:
        return None


def error_object(failure: Failure, request_id: str | None) -> dict[str, Any]:
    """Return the `error` object in OpenAI's shape: `type` and `code` are strings, `param` is null."""
    return {
        "message": failure.message,
        "type": failure.cause.value,
        "param": None,
        "code": failure.cause.value,
        "request_id": request_id,
    }


def one_line(text: str) -> str:
    """Return the text on one line, printable, at most `MAX_DETAIL` characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= MAX_DETAIL else plain[: MAX_DETAIL - 3] + "..."


def _cause_of_words(error: BaseException, text: str) -> Cause:
    """Classify an error that carries no cause: vLLM's and the backends' own, by their words."""
    if isinstance(error, MemoryError):
        return Cause.GRAMMAR_COMPILE_MEMORY
    if isinstance(error, TimeoutError) or "timed out" in text:
        return Cause.GRAMMAR_COMPILE_TIMEOUT
    if "not supported" in text or "unsupported" in text or "unimplemented" in text:
        return Cause.GRAMMAR_UNSUPPORTED
    return Cause.GRAMMAR_COMPILE_FAILED
