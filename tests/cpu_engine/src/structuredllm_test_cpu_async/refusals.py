"""Let the worker sample tokens that the request's grammar refuses, as a lost mask would.

The refused token is really sampled on the last pipeline stage: it is handed to the other stages, the steps
that were scheduled ahead take it as input, and their key-value entries are computed from it. Which tokens is
said in the request's id, which a client chooses with the header X-Request-Id, so that one engine serves
requests with and without:

    refuse-3-8-end     the 3rd and the 8th mask of the request are overruled
    refuse-all-end     all of them are

Steps that are thrown away have masks too, and count. Switched on by STRUCTUREDLLM_TEST_REFUSE=1.
"""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

MARK = "__structuredllm_test__"
PLAN = re.compile(r"refuse((?:-\d+)+|-all)-end")
MAX_REQUESTS = 10_000


def install(environ: Mapping[str, str]) -> None:
    """Overrule masks in this process if `environ` asks for it."""
    if environ.get("STRUCTUREDLLM_TEST_REFUSE") != "1":
        return
    from vllm.v1.worker import gpu_model_runner

    original = gpu_model_runner.apply_grammar_bitmask
    if not hasattr(original, MARK):
        gpu_model_runner.apply_grammar_bitmask = overruling(original)


def plan_of(request_id: str) -> Callable[[int], bool]:
    """Return what says whether the n-th mask (from 1) of a request is overruled."""
    found = PLAN.search(request_id)
    if found is None:
        return lambda n: False
    if found[1] == "-all":
        return lambda n: True
    wanted = {int(n) for n in found[1].split("-") if n}
    return lambda n: n in wanted


def overruling(original: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `apply_grammar_bitmask` (without draft tokens: one row a request)."""
    masks: dict[str, int] = {}

    @wraps(original)
    def apply_grammar_bitmask(
        scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
    ) -> None:
        free = logits.clone()
        original(scheduler_output, grammar_output, input_batch, logits)
        structured = set(grammar_output.structured_output_request_ids)
        for row, request_id in enumerate(input_batch.req_ids):
            if request_id not in structured or PLAN.search(request_id) is None:
                continue
            if len(masks) > MAX_REQUESTS:
                masks.clear()
            masks[request_id] = masks.get(request_id, 0) + 1
            refused = logits[row] == float("-inf")
            if plan_of(request_id)(masks[request_id]) and bool(refused.any()):
                # What the model would have liked best of what the grammar forbids.
                token = int(free[row].masked_fill(~refused, float("-inf")).argmax())
                logits[row] = float("-inf")
                logits[row, token] = 0.0

    setattr(apply_grammar_bitmask, MARK, True)
    return apply_grammar_bitmask
