"""p005: no mask row of a structured request is open because a draft is unknown."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.windows import open_rows, verified_drafts

Method = Callable[..., Any]


def build_grammar_bitmask(original: Method, on_unverified: Callable[[int], object]) -> Method:
    """Return the replacement of `StructuredOutputManager.grammar_bitmask`.

    Args:
        original: upstream's method; returns the mask, `[rows, words]` of int32, or None.
        on_unverified: told the number of drafts for which no grammar vouches, where there are any.
    """

    @wraps(original)
    def grammar_bitmask(
        manager: Any, requests: Any, request_ids: list[str], scheduled_drafts: dict[str, list[int]]
    ) -> Any:
        bitmask = original(manager, requests, request_ids, scheduled_drafts)
        # Diffusion models have other windows (no bonus row), and no V1 runner.
        if bitmask is None or not scheduled_drafts or manager.vllm_config.model_config.is_diffusion:
            return bitmask
        windows = [scheduled_drafts.get(request_id, ()) for request_id in request_ids]
        for filled, behind in open_rows(windows):
            bitmask[behind.start : behind.stop] = bitmask[filled]
        unverified = sum(len(drafts) - verified_drafts(drafts) for drafts in windows)
        if unverified:
            on_unverified(unverified)
        return bitmask

    return grammar_bitmask
