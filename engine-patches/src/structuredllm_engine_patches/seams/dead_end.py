"""p009: notice a mask that allows no token when it is built, and mark its request; p008's seam ends it.

The row is opened for one token, so that the sampler has something to sample from; what it samples is thrown
away with the request.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided import dead_end
from structuredllm_engine_patches.guided.grammar_state import state_of

Method = Callable[..., Any]


def build_get_grammar_bitmask(original: Method, logger: logging.Logger) -> Method:
    """Return the replacement of `Scheduler.get_grammar_bitmask`."""

    @wraps(original)
    def get_grammar_bitmask(scheduler: Any, scheduler_output: Any) -> Any:
        grammar_output = original(scheduler, scheduler_output)
        if grammar_output is None:
            return None
        rows = dead_end.dead_rows(grammar_output.grammar_bitmask)
        if rows:
            _mark(scheduler, scheduler_output, grammar_output, rows, logger)
        return grammar_output

    return get_grammar_bitmask


def _mark(
    scheduler: Any, scheduler_output: Any, grammar_output: Any, rows: list[int], logger: logging.Logger
) -> None:
    ids = grammar_output.structured_output_request_ids
    drafts = [len(scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())) for request_id in ids]
    owners = dead_end.owners_of_first_rows(ids, drafts)
    for row in rows:
        grammar_output.grammar_bitmask[row, 0] = 1
        request_id = owners.get(row)
        if request_id is not None:
            state_of(scheduler.requests[request_id].structured_output_request).dead_end = True
            logger.warning("request %s: its grammar allows no token and has not ended", request_id)
