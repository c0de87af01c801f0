"""p046: a constraint that does not pass the front-end's validation is refused with a cause of its own.

Upstream (vLLM 0.32) refuses most of them with a 400 of the type "BadRequestError" like any other bad
request; an error that its validators do not expect (a `KeyError` of a backend, a `ValueError` for a NUL
character) becomes a 500.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.causes import failure_of
from structuredllm_engine_patches.seams.error_bodies import attach, attached

Method = Callable[..., None]


def build_validate(original: Method) -> Method:
    """Return the replacement of `SamplingParams._validate_structured_outputs`."""

    @wraps(original)
    def _validate_structured_outputs(params: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(params, *args, **kwargs)
        except Exception as error:
            if attached(error) is not None:
                raise
            from vllm.exceptions import VLLMError, VLLMValidationError

            failure = failure_of(error)
            if isinstance(error, VLLMError):
                attach(error, failure, None)
                raise
            refusal = VLLMValidationError(failure.message)
            attach(refusal, failure, None)
            raise refusal from error

    return _validate_structured_outputs
