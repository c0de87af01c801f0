"""The cause's way: into the last output's stop reason, through the finish reason, onto the exception."""

import asyncio
import copy
import json
import logging
import pickle
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided.causes import Cause, Failure, GrammarFailureError, decode, encode
from structuredllm_engine_patches.guided.grammar_state import state_of
from structuredllm_engine_patches.seams import error_bodies, error_causes, error_reason, error_responses

LOGGER = logging.getLogger("test")


def request(status: str = "FINISHED_ERROR", *, structured: bool = True) -> Any:
    return SimpleNamespace(
        status=SimpleNamespace(name=status),
        structured_output_request=SimpleNamespace() if structured else None,
        stop_reason=7,
        num_output_tokens=3,
    )


def stopped(made: Any) -> tuple[Failure | None, list[Cause]]:
    """Let a request go through the seam; returns its cause and what was counted."""
    counted: list[Cause] = []

    def _handle_stopped_request(scheduler: Any, request: Any) -> bool:
        return True

    assert error_causes.build(_handle_stopped_request, counted.append)(None, made) is True
    return decode(made.stop_reason), counted


def test_a_refused_request_says_so() -> None:
    assert stopped(request()) == (Failure(Cause.GRAMMAR_REJECTED), [Cause.GRAMMAR_REJECTED])


def test_recoveries_and_dead_ends_are_told_apart() -> None:
    recovered, dead = request(), request()
    state_of(recovered.structured_output_request).recoveries = 3
    state_of(dead.structured_output_request).dead_end = True
    failure, _ = stopped(recovered)
    assert failure is not None
    assert failure.cause is Cause.GRAMMAR_REJECTED
    assert "rolled back 3 times" in failure.detail
    assert stopped(dead) == (
        Failure(Cause.GRAMMAR_DEAD_END, "It is stuck after 3 tokens."),
        [Cause.GRAMMAR_DEAD_END],
    )


@pytest.mark.parametrize(
    "made", [request("FINISHED_STOPPED"), request("FINISHED_LENGTH_CAPPED"), request(structured=False)]
)
def test_requests_that_end_otherwise_keep_their_stop_reason(made: Any) -> None:
    assert stopped(made) == (None, [])
    assert made.stop_reason == 7


def test_a_failed_compilation_is_named_in_its_own_output_only() -> None:
    def failed(error: Any) -> Any:
        return SimpleNamespace(structured_output_request=SimpleNamespace(grammar=error))

    def output(request_id: str, finish_reason: Any, stop_reason: Any = None) -> Any:
        return SimpleNamespace(request_id=request_id, finish_reason=finish_reason, stop_reason=stop_reason)

    scheduler = SimpleNamespace(
        grammar_compile_error_reqs={"bomb", "bad", "gone"},
        requests={
            "bomb": failed(GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT, "after 10 s")),
            "bad": failed(ValueError("unexpected token")),
        },
    )
    counted: list[Cause] = []

    def update_from_output(scheduler: Any, step: Any, result: Any) -> dict[int, Any]:
        scheduler.grammar_compile_error_reqs.clear()
        return {
            0: SimpleNamespace(outputs=[output("fine", None), output("bomb", "error")]),
            1: SimpleNamespace(outputs=[output("bad", "error"), output("other", "error", "x")]),
        }

    update = error_causes.build(update_from_output, counted.append)
    outputs = update(scheduler, "step", "result")
    reasons = {o.request_id: o.stop_reason for group in outputs.values() for o in group.outputs}
    assert reasons == {
        "fine": None,
        "bomb": encode(Failure(Cause.GRAMMAR_COMPILE_TIMEOUT, "after 10 s")),
        "bad": encode(Failure(Cause.GRAMMAR_COMPILE_FAILED, "unexpected token")),
        "other": "x",
    }
    assert sorted(counted) == [Cause.GRAMMAR_COMPILE_FAILED, Cause.GRAMMAR_COMPILE_TIMEOUT]
    assert update(scheduler, "step", "result")[0].outputs[1].stop_reason is None


def completion(finish_reason: str | None, stop_reason: Any) -> Any:
    def _new_completion_output(state: Any, token_ids: Any, finish_reason: Any, stop_reason: Any) -> Any:
        return SimpleNamespace(finish_reason=finish_reason, stop_reason=stop_reason)

    build = error_reason.build_new_completion_output(_new_completion_output)
    return build(None, [], finish_reason, stop_reason)


def test_the_finish_reason_of_a_failed_request_knows_why_and_still_equals_error() -> None:
    failure = Failure(Cause.GRAMMAR_REJECTED)
    reason = completion("error", encode(failure)).finish_reason
    assert reason == "error"
    assert json.dumps(reason) == '"error"'
    for twin in (reason, copy.deepcopy(reason), pickle.loads(pickle.dumps(reason))):  # noqa: S301
        assert twin.failure == failure


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("error", None), ("error", "x"), ("stop", "structuredllm:grammar_rejected"), (None, None)],
)
def test_other_finish_reasons_stay_what_they_are(finish: str | None, stop: Any) -> None:
    assert completion(finish, stop).finish_reason is finish


def test_streams_get_the_error_object_for_a_known_cause_only() -> None:
    def create_streaming_error_response(serving: Any, message: Any, err_type: str = "x") -> str:
        return f"upstream's for {message} {err_type}"

    event = error_bodies.build_serving(create_streaming_error_response, LOGGER)
    assert event(None, "text", err_type="y") == "upstream's for text y"
    error = ValueError("why")
    assert event(None, error) == "upstream's for why x"
    error_bodies.attach(error, Failure(Cause.GRAMMAR_UNSUPPORTED, "uniqueItems"), "cmpl-1")
    found = json.loads(event(None, error))["error"]
    assert (found["type"], found["code"], found["request_id"]) == (
        "grammar_unsupported",
        "grammar_unsupported",
        "cmpl-1",
    )
    assert found["message"].endswith("uniqueItems")


def test_the_responses_api_gets_the_error_itself_where_it_would_validate_a_body() -> None:
    def _convert_generation_error_to_streaming_response(serving: Any, error: Any) -> str:
        return "upstream's"

    convert = error_bodies.build_serving(_convert_generation_error_to_streaming_response, LOGGER)
    assert convert(ResponsesServing(), ValueError("x")) == "upstream's"
    assert json.loads(convert(SimpleNamespace(), failing()))["error"]["type"] == "grammar_rejected"
    with pytest.raises(ValueError, match="why"):
        convert(ResponsesServing(), failing())


async def test_a_responses_stream_ends_with_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_responses, "error_event", lambda failure, name, number: (failure, name, number))

    async def responses_stream_generator(
        serving: Any, request: Any, error: Exception
    ) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(sequence_number=0)
        yield SimpleNamespace(sequence_number=1)
        raise error

    stream, serving = error_responses.build(responses_stream_generator), ResponsesServing()
    events = [event async for event in stream(serving, RESPONSES_REQUEST, failing())]
    assert events[2:] == [(Failure(Cause.GRAMMAR_REJECTED), "r", 2)]
    assert serving.response_store["r"].status == "failed"
    with pytest.raises(KeyError):
        _ = [event async for event in stream(serving, RESPONSES_REQUEST, KeyError("other"))]


def test_an_error_without_a_cause_is_raised_by_upstream() -> None:
    seen: list[Any] = []

    def _raise_if_error(serving: Any, finish_reason: Any, request_id: str) -> None:
        seen.append((finish_reason, request_id))

    check = error_bodies.build_serving(_raise_if_error, LOGGER)
    for reason in (None, "stop", "error"):
        check(None, reason, "r")
    assert seen == [(None, "r"), ("stop", "r"), ("error", "r")]


@pytest.mark.parametrize(("cause", "status"), [(Cause.GRAMMAR_REJECTED, 500), (Cause.GRAMMAR_DEAD_END, 400)])
async def test_whole_responses_have_the_causes_status_and_the_request_id(cause: Cause, status: int) -> None:
    async def generation_error_handler(http_request: Any, error: Any) -> str:
        return "upstream's"

    handle = error_bodies.build_handler(generation_error_handler)
    http_request = SimpleNamespace(
        state=SimpleNamespace(request_metadata=SimpleNamespace(request_id="chat-1"))
    )
    assert await handle(http_request, ValueError("x")) == "upstream's"
    for given, shown in (("cmpl-9", "cmpl-9"), (None, "chat-1")):
        error = ValueError("x")
        error_bodies.attach(error, Failure(cause), given)
        response = await handle(http_request, error)
        assert response.status_code == status
        body = json.loads(response.body)["error"]
        assert (body["type"], body["code"], body["param"], body["request_id"]) == (cause, cause, None, shown)


def test_a_cause_is_found_through_the_errors_that_hid_it() -> None:
    def raise_hidden() -> None:
        try:
            error = ValueError("why")
            error_bodies.attach(error, Failure(Cause.GRAMMAR_REJECTED), "r")
            raise error
        except ValueError:
            raise KeyError("not an event")  # noqa: B904 - as upstream does

    with pytest.raises(KeyError) as caught:
        raise_hidden()
    assert error_responses.known_in_chain(caught.value) == (Failure(Cause.GRAMMAR_REJECTED), "r")
    assert error_responses.known_in_chain(KeyError("other")) is None


class ResponsesServing:
    """As much of `OpenAIServingResponses` as its seams touch."""

    def __init__(self) -> None:
        self.response_store_lock = asyncio.Lock()
        self.response_store = {"r": SimpleNamespace(status="in_progress")}

    def _raise_if_error(self, finish_reason: Any, request_id: str) -> None:
        if finish_reason == "error":
            raise failing()


def failing() -> Exception:
    error = ValueError("why")
    error_bodies.attach(error, Failure(Cause.GRAMMAR_REJECTED), "r")
    return error


RESPONSES_REQUEST = SimpleNamespace(request_id="r")


async def test_a_failed_background_response_is_stored_as_failed() -> None:
    async def _run_background_request(serving: Any, request: Any, error: Exception) -> None:
        raise error

    run, serving = error_responses.build(_run_background_request), ResponsesServing()
    with pytest.raises(KeyError):
        await run(serving, RESPONSES_REQUEST, KeyError("other"))
    assert serving.response_store["r"].status == "in_progress"
    await run(serving, RESPONSES_REQUEST, failing())
    assert serving.response_store["r"].status == "failed"
    serving.response_store["r"].status = "cancelled"
    await run(serving, RESPONSES_REQUEST, failing())
    assert serving.response_store["r"].status == "cancelled"


async def test_every_context_of_a_failed_response_raises() -> None:
    async def responses_full_generator(serving: Any, request: Any, *args: Any, **kwargs: Any) -> str:
        return "completed"

    full, serving = error_responses.build(responses_full_generator), ResponsesServing()
    fine, failed = SimpleNamespace(finish_reason="stop"), SimpleNamespace(finish_reason="error")
    assert await full(serving, RESPONSES_REQUEST, "params", "results", fine) == "completed"
    assert await full(serving, RESPONSES_REQUEST, "params", "results", SimpleNamespace()) == "completed"
    for call in (
        full(serving, RESPONSES_REQUEST, "params", "results", failed),
        full(serving, RESPONSES_REQUEST, context=failed),
    ):
        with pytest.raises(ValueError, match="why"):
            await call
