"""What clients of failed requests get, from vLLM's own handlers and serving classes, with and without the
patches."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pydantic
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.openai.responses import api_router
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.serve.exception_handling.handlers import vllm_error
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from structuredllm_engine_patches.guided.causes import Cause, Failure
from structuredllm_engine_patches.seams.error_reason import CausedError

REJECTED = CausedError(Failure(Cause.GRAMMAR_REJECTED))
DEAD_END = CausedError(Failure(Cause.GRAMMAR_DEAD_END, "It is stuck after 3 tokens."))


def serving(kind: Any = GenerateBaseServing) -> Any:
    return kind.__new__(kind)


def whole_answer(finish_reason: str) -> tuple[int, Any]:
    """Return status and body of an endpoint whose request ended with this finish reason."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    init_exception_handler(app)

    @app.get("/")
    async def answer() -> None:
        serving()._raise_if_error(finish_reason, "chatcmpl-1")

    response = TestClient(app, raise_server_exceptions=False).get("/")
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("reason", "status", "kind"), [(REJECTED, 500, "grammar_rejected"), (DEAD_END, 400, "grammar_dead_end")]
)
def test_a_whole_answer_says_why(reason: CausedError, status: int, kind: str) -> None:
    found, body = whole_answer(reason)
    assert found == status
    assert body == {
        "error": {
            "message": reason.failure.message,
            "type": kind,
            "param": None,
            "code": kind,
            "request_id": "chatcmpl-1",
        }
    }


def test_other_failures_stay_what_they_are() -> None:
    status, body = whole_answer("error")
    assert status == 500
    assert (body["error"]["message"], body["error"]["code"]) == ("Internal server error", 500)


def test_upstream_says_nothing() -> None:
    with (
        patch.object(GenerateBaseServing, "_raise_if_error", GenerateBaseServing._raise_if_error.__wrapped__),
        patch.object(vllm_error, "generation_error_handler", vllm_error.generation_error_handler.__wrapped__),
    ):
        assert whole_answer(REJECTED)[1]["error"]["message"] == "Internal server error"


def test_a_stream_says_why() -> None:
    base = serving()
    with pytest.raises(GenerationError) as caught:
        base._raise_if_error(DEAD_END, "cmpl-1")
    event = json.loads(base._convert_generation_error_to_streaming_response(caught.value))
    assert (event["error"]["type"], event["error"]["request_id"]) == ("grammar_dead_end", "cmpl-1")
    assert caught.value.status_code == 400


def responses_events(generator: Any) -> list[str]:
    """Return the server-sent events of a Responses stream whose request fails, by this stream generator."""
    responses = serving(OpenAIServingResponses)
    responses.use_harmony = False
    responses.response_store = {}
    responses.response_store_lock = asyncio.Lock()

    async def failing_events(*args: Any) -> AsyncIterator[Any]:
        responses._raise_if_error(REJECTED, "resp_1")
        yield

    responses._process_simple_streaming_events = failing_events
    request = ResponsesRequest(model="toy", input="x", request_id="resp_1")

    async def collect() -> list[str]:
        events = generator(responses, request, SamplingParams(max_tokens=5), None, None, "toy", None, None)
        return [event async for event in api_router._convert_stream_to_sse_events(events)]

    return asyncio.run(collect())


def test_a_responses_stream_ends_with_an_error_event() -> None:
    *begun, last = responses_events(OpenAIServingResponses.responses_stream_generator)
    assert [event.partition("\n")[0] for event in begun] == [
        "event: response.created",
        "event: response.in_progress",
    ]
    name, data = last.rstrip("\n").split("\n")
    found = json.loads(data.removeprefix("data: "))
    assert name == "event: error"
    assert (found["type"], found["code"], found["sequence_number"]) == ("error", "grammar_rejected", 2)
    assert (found["error"]["type"], found["error"]["request_id"]) == ("grammar_rejected", "resp_1")


def test_upstreams_responses_stream_breaks_off() -> None:
    convert = GenerateBaseServing._convert_generation_error_to_streaming_response.__wrapped__
    with (
        patch.object(GenerateBaseServing, "_convert_generation_error_to_streaming_response", convert),
        pytest.raises(pydantic.ValidationError),
    ):
        responses_events(OpenAIServingResponses.responses_stream_generator.__wrapped__)


@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "grammar_unsupported"),
        ({"grammar": "root ::= ("}, "grammar_compile_failed"),
        ({"regex": "a\x00b"}, "grammar_compile_failed"),
    ],
)
def test_what_validation_refuses_has_a_cause(constraint: dict[str, Any], kind: str) -> None:
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    init_exception_handler(app)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))

    # Not on the event loop: there the validation does not wait for a parse, and leaves it to the engine.
    @app.get("/")
    def answer() -> None:
        params._validate_structured_outputs(
            SimpleNamespace(is_diffusion=False), SimpleNamespace(backend="xgrammar"), object()
        )

    response = TestClient(app, raise_server_exceptions=False).get("/")
    assert response.status_code == 400
    assert (response.json()["error"]["type"], response.json()["error"]["code"]) == (kind, kind)


def test_errors_that_validators_do_not_expect_are_refusals_too() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(grammar="root ::= ("))

    def unexpected(*args: Any) -> None:
        raise KeyError("triggers")

    with (
        patch("vllm.v1.structured_output.backend_xgrammar.validate_xgrammar_grammar", unexpected),
        pytest.raises(VLLMValidationError, match="triggers"),
    ):
        params._validate_structured_outputs(
            SimpleNamespace(is_diffusion=False), SimpleNamespace(backend="xgrammar"), object()
        )
