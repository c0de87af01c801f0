"""p008 and p024: ask the grammar before a sampled token is taken, and roll the request back if it refuses.

Upstream (vLLM 0.32) appends the token to the request, and only then asks the grammar; by then the token is
part of the request's text and block hashes, and the request may already count as stopped. The seam asks
first. On a refusal nothing of the request has changed yet, and what runs ahead of it (asynchronous
scheduling: steps that took the refused token as input, key-value entries computed from it) is undone by
upstream's own preemption with its in-flight output dropped: the request goes back to the waiting queue with
its blocks freed, and is computed anew from its last accepted token.
"""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided import recovery
from structuredllm_engine_patches.guided.grammar_state import GrammarState, known_state_of, state_of

Method = Callable[..., Any]


def build_accept(original: Method) -> Method:
    """Return the replacement of `StructuredOutputManager.accept_tokens`: a grammar is asked once a token."""

    @wraps(original)
    def accept_tokens(manager: Any, request: Any, new_token_ids: list[int]) -> bool:
        state = known_state_of(request.structured_output_request)
        if state is None or state.verdict is None:
            return bool(original(manager, request, new_token_ids))
        verdict, state.verdict = state.verdict, None
        return verdict

    return accept_tokens


def build_update(
    original: Method, *, asks_once: Callable[[], bool], count: Callable[[], Any], logger: logging.Logger
) -> Method:
    """Return the replacement of `Scheduler._update_request_with_output`.

    Args:
        original: upstream's method.
        asks_once: whether `build_accept`'s replacement is in place; without it a grammar would be asked
            twice, so nothing is asked here.
        count: told of each recovery.
        logger: where refusals are reported.
    """

    @wraps(original)
    def _update_request_with_output(
        scheduler: Any, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> Any:
        structured = request.structured_output_request
        if structured is None:
            return original(scheduler, request, new_token_ids, *args, **kwargs)
        state = state_of(structured)
        if state.dead_end:
            return _end(request)
        if _can_ask_first(scheduler, new_token_ids) and asks_once():
            state.verdict = _takes(structured.grammar, request.request_id, new_token_ids)
            if not state.verdict and _recovers(scheduler, request, state, new_token_ids[0], logger):
                count()
                return [], False
        return original(scheduler, request, new_token_ids, *args, **kwargs)

    return _update_request_with_output


def _takes(grammar: Any, request_id: str, tokens: list[int]) -> bool:
    """Let the grammar take the tokens; a refusal leaves it as it was, or so that `_set_back` mends it."""
    asked_before = (
        type(grammar).__name__ in recovery.BROKEN_BY_REFUSAL and not grammar.ll_matcher.is_stopped()
    )
    if asked_before and grammar.validate_tokens(tokens) != tokens:
        return False
    return bool(grammar.accept_tokens(request_id, tokens))


def _recovers(
    scheduler: Any, request: Any, state: GrammarState, token_id: int, logger: logging.Logger
) -> bool:
    """Roll a request back whose grammar refused `token_id`, if that is possible; return whether it was."""
    grammar = request.structured_output_request.grammar
    reason = recovery.obstacle(_situation(scheduler, request, state))
    if not reason and not _set_back(grammar, request):
        reason = "its grammar refuses also the tokens that it took before"
    if reason:
        logger.error(
            "request %s ends: its grammar refused token %d after %d output tokens, and it cannot be rolled "
            "back because %s",
            request.request_id,
            token_id,
            request.num_output_tokens,
            reason,
        )
        return False
    state.verdict = None
    state.recoveries += 1
    logger.warning(
        "request %s is rolled back (%d of at most %d): its grammar refused token %d after %d output tokens",
        request.request_id,
        state.recoveries,
        recovery.MAX_RECOVERIES,
        token_id,
        request.num_output_tokens,
    )
    _roll_back(scheduler, request)
    return True


def _can_ask_first(scheduler: Any, new_token_ids: list[int]) -> bool:
    """Return whether the grammar's part of the sampled tokens is known before they are taken.

    With a reasoning parser it depends on the request's text with the tokens in it; of several tokens upstream
    drops those after a stop token.
    """
    return len(new_token_ids) == 1 and scheduler.structured_output_manager.reasoner_cls is None


def _situation(scheduler: Any, request: Any, state: GrammarState) -> recovery.Situation:
    params = request.sampling_params
    connectors = ("connector", "ec_connector", "aux_output_connector")
    return recovery.Situation(
        recoveries=state.recoveries,
        grammar=type(request.structured_output_request.grammar).__name__,
        delivered=request.num_output_tokens,
        speculates=scheduler.num_spec_tokens > 0,
        # The V2 runner draws from seed and position, so nothing is used up there.
        draws_from_seed=params.sampling_type.name == "RANDOM_SEED" and not scheduler.use_v2_model_runner,
        resumable=bool(request.resumable),
        has_prompt_logprobs=params.prompt_logprobs is not None,
        has_connector=any(getattr(scheduler, name, None) is not None for name in connectors),
    )


def _set_back(grammar: Any, request: Any) -> bool:
    """Give the grammar the request's tokens anew, which also shows whether it agrees with its history."""
    grammar.reset()
    tokens = list(request.output_token_ids)
    return not tokens or bool(grammar.accept_tokens(request.request_id, tokens))


def _roll_back(scheduler: Any, request: Any) -> None:
    """Let the scheduler compute the request anew from its last accepted token.

    The refused token was not appended and its key-value entry was never hashed (only tokens before it are
    known to be computed), so freeing the request's blocks forgets it.
    """
    statuses = type(request.status)
    if request.status == statuses.RUNNING:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
        # It may come back in the very next step; the worker must take all of its tokens from the scheduler.
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
    else:
        # It was preempted before and its output in flight is still being delivered: that is void now.
        request.drop_stale_output = True
    if request.num_output_tokens == 0 and not scheduler.use_v2_model_runner:
        # The V1 worker takes a resumed request's output tokens from the scheduler only if there are any, and
        # would keep the refused one's place holder. It starts over instead, as a new request of the same id
        # (with a new generator); the worker frees the old one's state first.
        request.status = statuses.WAITING
        scheduler.finished_req_ids.add(request.request_id)


def _end(request: Any) -> tuple[list[int], bool]:
    """End a request whose token was sampled from a mask that allowed none: no token taken, stopped."""
    request.status = type(request.status).FINISHED_ERROR
    request.resumable = False
    return [], True
