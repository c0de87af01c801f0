"""p021 and p022: give the client of a failed request an error that says why, whole or in a stream.

Upstream (vLLM 0.32) raises `GenerationError("Internal server error")` for every failed request, and its
error model takes only an integer `code`. The cause hangs on the exception as an attribute; where upstream
turns an exception into a body, ours is written if there is a cause. An exception that reaches a place not
known here still has the right message and, as `status_code`, the right status.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from structuredllm_engine_patches.guided.causes import Failure, error_object

ATTRIBUTE = "_structuredllm_failure"

RESPONSES_STORE = "response_store"
"""Attribute by which the Responses API's serving class is known, without importing it."""

Method = Callable[..., Any]
Handler = Callable[[Any, Any], Awaitable[Any]]


def attach(error: Exception, failure: Failure, request_id: str | None) -> None:
    """Hang a cause, and the id of the request that it is about, on an exception."""
    setattr(error, ATTRIBUTE, (failure, request_id))


def attached(error: object) -> tuple[Failure, str | None] | None:
    """Return what `attach` hung on an exception."""
    return getattr(error, ATTRIBUTE, None)


def build_serving(original: Method, logger: logging.Logger) -> Method:
    """Return the replacement of one of the targets in `GenerateBaseServing`."""
    makers: dict[str, Callable[[], Method]] = {
        "_raise_if_error": lambda: _build_raise(original, logger),
        "_convert_generation_error_to_streaming_response": lambda: _build_convert(original),
        "create_streaming_error_response": lambda: _build_streaming(original),
    }
    return makers[original.__name__]()


def _build_raise(original: Method, logger: logging.Logger) -> Method:
    @wraps(original)
    def _raise_if_error(serving: Any, finish_reason: Any, request_id: str) -> None:
        failure = getattr(finish_reason, "failure", None)
        if failure is None:
            original(serving, finish_reason, request_id)
            return
        from vllm.exceptions import GenerationError

        logger.warning("request %s failed: %s: %s", request_id, failure.cause, failure.message)
        error = GenerationError(failure.message)
        error.status_code = HTTPStatus(failure.status)
        attach(error, failure, request_id)
        raise error

    return _raise_if_error


def _build_convert(original: Method) -> Method:
    @wraps(original)
    def _convert_generation_error_to_streaming_response(serving: Any, error: Any) -> str:
        known = attached(error)
        if known is None:
            return str(original(serving, error))
        if hasattr(serving, RESPONSES_STORE):
            # The Responses API would validate our JSON as one of its events, which it is not: p023's seam,
            # around the stream, makes the right one of the error.
            raise error
        return json.dumps({"error": error_object(*known)})

    return _convert_generation_error_to_streaming_response


def _build_streaming(original: Method) -> Method:
    @wraps(original)
    def create_streaming_error_response(serving: Any, message: Any, *args: Any, **kwargs: Any) -> str:
        known = attached(message)
        if known is None:
            return str(original(serving, message, *args, **kwargs))
        return json.dumps({"error": error_object(*known)})

    return create_streaming_error_response


def build_handler(original: Handler) -> Handler:
    """Return the replacement of an exception handler of the HTTP server."""

    @wraps(original)
    async def handle(http_request: Any, error: Any) -> Any:
        known = attached(error)
        if known is None:
            return await original(http_request, error)
        from starlette.responses import JSONResponse

        failure, request_id = known
        if request_id is None:
            request_id = _request_id_of(http_request)
        return JSONResponse({"error": error_object(failure, request_id)}, status_code=failure.status)

    return handle


def _request_id_of(http_request: Any) -> str | None:
    """Return the id that the endpoint has given to the request so far."""
    found = getattr(getattr(http_request.state, "request_metadata", None), "request_id", None)
    return None if found is None else str(found)
