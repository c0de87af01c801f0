"""p020: carry the cause of a failed request to where the front-end raises its error.

Upstream's `_raise_if_error` is given the finish reason and nothing else. The finish reason of a request that
failed for a known cause is therefore a string that equals "error" and knows the cause.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.causes import Failure, decode

ERROR = "error"


class CausedError(str):
    """The finish reason "error" with its cause.

    Attributes:
        failure: why the request ended.
    """

    failure: Failure

    def __new__(cls, failure: Failure) -> "CausedError":
        """Make one; equal to "error", and written as such."""
        made = super().__new__(cls, ERROR)
        made.failure = failure
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive a copy."""
        return CausedError, (self.failure,)


def build_new_completion_output(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `RequestState._new_completion_output`."""

    @wraps(original)
    def _new_completion_output(
        state: Any, token_ids: Any, finish_reason: Any, stop_reason: Any, *args: Any, **kwargs: Any
    ) -> Any:
        output = original(state, token_ids, finish_reason, stop_reason, *args, **kwargs)
        if output.finish_reason == ERROR:
            failure = decode(stop_reason)
            if failure is not None:
                output.finish_reason = CausedError(failure)
        return output

    return _new_completion_output
