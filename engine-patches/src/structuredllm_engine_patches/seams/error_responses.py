"""p023: the same for the Responses API, which has a shape of its own for an error in a stream.

Upstream (vLLM 0.32) validates the error body against its union of stream events, which has none for errors:
the validation fails inside the handler and the connection breaks off. A whole answer of one of its contexts
is "completed" although the request failed, and one that is made in the background stays "in progress" for
ever.
"""

from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.causes import Failure, error_object
from structuredllm_engine_patches.seams.error_bodies import attached

MAX_CHAIN = 16

Method = Callable[..., Any]


def build(original: Method) -> Method:
    """Return the replacement of one of the targets in `OpenAIServingResponses`."""
    makers = {
        "responses_stream_generator": _build_stream,
        "responses_full_generator": _build_full,
        "_run_background_request": _build_background,
    }
    return makers[original.__name__](original)


def _build_stream(original: Method) -> Method:
    @wraps(original)
    async def responses_stream_generator(
        serving: Any, request: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        sequence_number = -1
        try:
            async for event in original(serving, request, *args, **kwargs):
                sequence_number = getattr(event, "sequence_number", sequence_number)
                yield event
        except Exception as error:
            known = known_in_chain(error)
            if known is None:
                raise
            await _mark_failed(serving, request.request_id)
            yield error_event(*known, sequence_number + 1)

    return responses_stream_generator


def _build_full(original: Method) -> Method:
    @wraps(original)
    async def responses_full_generator(serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = await original(serving, request, *args, **kwargs)
        context = kwargs["context"] if "context" in kwargs else args[2]
        serving._raise_if_error(getattr(context, "finish_reason", None), request.request_id)
        return response

    return responses_full_generator


def _build_background(original: Method) -> Method:
    @wraps(original)
    async def _run_background_request(serving: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        try:
            await original(serving, request, *args, **kwargs)
        except Exception as error:
            if known_in_chain(error) is None:
                raise
            await _mark_failed(serving, request.request_id)

    return _run_background_request


async def _mark_failed(serving: Any, response_id: str) -> None:
    """Let whoever asks for a stored response later know that it failed, as upstream does for its errors."""
    async with serving.response_store_lock:
        stored = serving.response_store.get(response_id)
        if stored is not None and stored.status not in ("completed", "cancelled"):
            stored.status = "failed"


def known_in_chain(error: BaseException) -> tuple[Failure, str | None] | None:
    """Return the cause that hangs on an exception or on one during whose handling it was raised."""
    current: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if current is None:
            break
        known = attached(current)
        if known is not None:
            return known
        current = current.__cause__ or current.__context__
    return None


def error_event(failure: Failure, request_id: str | None, sequence_number: int) -> Any:
    """Return the Responses API's stream event of an error, with the whole error object in it."""
    from openai.types.responses import ResponseErrorEvent

    body = error_object(failure, request_id)
    return ResponseErrorEvent.model_validate(
        {
            "type": "error",
            "code": body["code"],
            "message": body["message"],
            "param": None,
            "sequence_number": sequence_number,
            "error": body,
        }
    )
