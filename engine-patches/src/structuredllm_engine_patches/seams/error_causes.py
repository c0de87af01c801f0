"""p007: say in a request's last output why it ended, in its stop reason.

Upstream (vLLM 0.32, `Scheduler`) ends a request with FINISHED_ERROR for a token that its grammar refused and
for a grammar that did not compile; its output then says "error" and nothing else.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.causes import Cause, Failure, decode, encode, failure_of
from structuredllm_engine_patches.guided.grammar_state import known_state_of

Count = Callable[[Cause], None]
Method = Callable[..., Any]


def build(original: Method, count: Count) -> Method:
    """Return the replacement of one of the two targets; `count` is told of each request that ends."""
    makers = {"_handle_stopped_request": _build_handle_stopped, "update_from_output": _build_update}
    return makers[original.__name__](original, count)


def _build_handle_stopped(original: Method, count: Count) -> Method:
    @wraps(original)
    def _handle_stopped_request(scheduler: Any, request: Any) -> Any:
        # Called right before the output of the request's last step is made. The only error that leads here
        # is the grammar's refusal; all others go through `finish_requests`.
        if request.status.name == "FINISHED_ERROR" and request.structured_output_request is not None:
            failure = failure_of_request(request)
            request.stop_reason = encode(failure)
            count(failure.cause)
        return original(scheduler, request)

    return _handle_stopped_request


def _build_update(original: Method, count: Count) -> Method:
    @wraps(original)
    def update_from_output(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        failures = compile_failures(scheduler)
        outputs = original(scheduler, *args, **kwargs)
        if failures:
            for failure in name_failures(outputs, failures):
                count(failure.cause)
        return outputs

    return update_from_output


def failure_of_request(request: Any) -> Failure:
    """Return why a structured request that ended while its token was processed did so."""
    state = known_state_of(request.structured_output_request)
    if state is not None and state.dead_end:
        return Failure(Cause.GRAMMAR_DEAD_END, f"It is stuck after {request.num_output_tokens} tokens.")
    if state is not None and state.recoveries:
        return Failure(
            Cause.GRAMMAR_REJECTED, f"The request was rolled back {state.recoveries} times before."
        )
    return Failure(Cause.GRAMMAR_REJECTED)


def compile_failures(scheduler: Any) -> Mapping[str, Failure]:
    """Return the failure of each request that upstream is about to end because of its grammar's compilation.

    Upstream empties its set while it makes the outputs, so this has to be asked before.
    """
    found: dict[str, Failure] = {}
    for request_id in scheduler.grammar_compile_error_reqs:
        request = scheduler.requests.get(request_id)
        error = None if request is None else request.structured_output_request.grammar
        if isinstance(error, BaseException):
            found[request_id] = failure_of(error)
    return found


def name_failures(outputs: Mapping[int, Any], failures: Mapping[str, Failure]) -> list[Failure]:
    """Put the causes into the stop reasons of the outputs; returns those that were put."""
    named = []
    for group in outputs.values():
        for output in group.outputs:
            failure = failures.get(output.request_id)
            if (
                failure is not None
                and output.finish_reason is not None
                and decode(output.stop_reason) is None
            ):
                output.stop_reason = encode(failure)
                named.append(failure)
    return named
