"""p004: the V1 worker takes no draft that the grammar does not vouch for.

The engine core sends with each mask how many leading drafts of a window the grammar accepted
(`GrammarOutput.num_acceptable_drafts`). The V1 runner never reads it. It checks its own copy of the drafts,
which may be others than the scheduler saw, against rows that are open behind the first placeholder.
Here such drafts become placeholders before the rejection sampler sees them: it refuses those and samples a
token of the model's own from the window's last closed row.

The `ngram_gpu` drafter shortens windows in the worker, so that the mask has more rows than there are
logits and every later row would meet another request's logits. The surplus rows are dropped here.
"""

import copy
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.windows import PLACEHOLDER, kept_rows, refused_drafts

SCHEDULED = "_structuredllm_scheduled_drafts"
"""On the runner: request id to the number of drafts that the scheduler scheduled for it in this step."""

REFUSED = "_structuredllm_refused_drafts"
"""On the runner: positions of refused drafts while a step samples."""

Method = Callable[..., Any]


def build(original: Method) -> Method:
    """Return the replacement of one of the patch's targets, all methods of `GPUModelRunner`."""
    builders = {
        "_update_states": build_update_states,
        "sample_tokens": build_sample_tokens,
        "_get_spec_decode_draft_probs": build_draft_probs,
    }
    return builders[original.__name__](original)


def build_update_states(original: Method) -> Method:
    """Return `_update_states` that first notes the windows' lengths, which it may shorten."""

    @wraps(original)
    def update_states(runner: Any, scheduler_output: Any) -> Any:
        if runner.speculative_config is not None:
            drafts = scheduler_output.scheduled_spec_decode_tokens
            setattr(runner, SCHEDULED, {request_id: len(tokens) for request_id, tokens in drafts.items()})
        return original(runner, scheduler_output)

    return update_states


def build_sample_tokens(original: Method) -> Method:
    """Return `sample_tokens` that gates the drafts and aligns the mask first."""

    @wraps(original)
    def sample_tokens(runner: Any, grammar_output: Any) -> Any:
        state = runner.execute_model_state
        # Without a state this is a stage that samples nothing.
        if grammar_output is None or state is None or runner.speculative_config is None:
            return original(runner, grammar_output)
        kept = {
            request_id: len(tokens)
            for request_id, tokens in state.scheduler_output.scheduled_spec_decode_tokens.items()
        }
        grammar_output = aligned(grammar_output, getattr(runner, SCHEDULED, {}), kept)
        refused = _refused(runner, state.spec_decode_metadata, grammar_output)
        if refused:
            runner.execute_model_state = _without_drafts(state, refused)
        setattr(runner, REFUSED, refused)
        try:
            return original(runner, grammar_output)
        finally:
            setattr(runner, REFUSED, [])

    return sample_tokens


def build_draft_probs(original: Method) -> Method:
    """Return `_get_spec_decode_draft_probs` in which a refused draft had no probability.

    The token that replaces a refused draft is drawn from what the target's probabilities exceed the
    drafter's by. Where both are sure of the same token nothing exceeds, and token 0 would come out, whatever
    the mask says.
    """

    @wraps(original)
    def draft_probs(runner: Any, metadata: Any) -> Any:
        probabilities = original(runner, metadata)
        refused = getattr(runner, REFUSED, [])
        if probabilities is not None and refused:
            probabilities = probabilities.index_fill(0, _indices(refused, probabilities.device), 0.0)
        return probabilities

    return draft_probs


def aligned(grammar_output: Any, scheduled: Mapping[str, int], kept: Mapping[str, int]) -> Any:
    """Return the grammar output with exactly the rows that the worker has logits for.

    Args:
        grammar_output: vLLM's `GrammarOutput`; its mask is `[rows, words]` of int32.
        scheduled: number of drafts of each request as scheduled.
        kept: number of drafts of each request as the worker computed them.

    Raises:
        ValueError: the mask fits neither. Sampling would use the rows of another request.
    """
    windows = [
        (scheduled.get(request_id, 0), kept.get(request_id, 0))
        for request_id in grammar_output.structured_output_request_ids
    ]
    rows = len(grammar_output.grammar_bitmask)
    # Where engine core and worker share a process they share the scheduler's output, windows included.
    if rows == sum(length + 1 for _, length in windows):
        return grammar_output
    if rows != sum(length + 1 for length, _ in windows):
        raise ValueError(f"a grammar mask of {rows} rows does not fit windows (scheduled, kept) {windows}")
    narrowed = copy.copy(grammar_output)
    narrowed.grammar_bitmask = grammar_output.grammar_bitmask[kept_rows(windows)]
    return narrowed


def _refused(runner: Any, metadata: Any, grammar_output: Any) -> list[int]:
    if metadata is None:
        return []
    request_ids = grammar_output.structured_output_request_ids
    # None comes from a scheduler that does not say: then the grammar vouches for none.
    verified = grammar_output.num_acceptable_drafts or [0] * len(request_ids)
    limits = dict(zip(request_ids, verified, strict=True))
    return refused_drafts(
        (drafts, limits.get(request_id))
        for request_id, drafts in zip(runner.input_batch.req_ids, metadata.num_draft_tokens, strict=True)
    )


def _without_drafts(state: Any, refused: list[int]) -> Any:
    metadata = copy.copy(state.spec_decode_metadata)
    drafts = metadata.draft_token_ids
    metadata.draft_token_ids = drafts.index_fill(0, _indices(refused, drafts.device), PLACEHOLDER)
    return state._replace(spec_decode_metadata=metadata)


def _indices(positions: list[int], device: Any) -> Any:
    import torch

    return torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True)
