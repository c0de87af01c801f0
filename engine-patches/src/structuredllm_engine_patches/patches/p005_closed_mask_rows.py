"""p005: mask rows behind an unknown draft stay closed."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import mask_rows
from structuredllm_engine_patches.telemetry.metrics import UNVERIFIED_DRAFTS

MANAGER = "vllm.v1.structured_output"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    observation = installation.observation
    return mask_rows.build_grammar_bitmask(
        original, lambda drafts: observation.add(UNVERIFIED_DRAFTS, drafts)
    )


PATCH = Patch(
    id="p005-closed-mask-rows",
    title="Close the mask rows behind a draft that the grammar refused or never saw",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{MANAGER}:StructuredOutputManager.grammar_bitmask",),
            # Nothing of the scheduler's module: it is what imports this one.
            fingerprints={
                f"{MANAGER}:StructuredOutputManager.grammar_bitmask": "156d2425ca6eb654",
                f"{MANAGER}:StructuredOutputManager._fill_bitmasks": "1319b98323d5b0ba",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "rows behind a lost draft stay open there; use no speculative decoding with structured output",
            needed=True,
        )
    },
    why=(
        "After the first draft placeholder of a window upstream fills every row with ones. A placeholder also"
        " stands for drafts that never reached the scheduler, so a structured request can sample up to a "
        "whole window without its grammar. The rows behind a placeholder repeat the placeholder's own row "
        "instead; with p004 no token is taken from them."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/54437",
    upstream_change=(
        "In `StructuredOutputManager.grammar_bitmask`, copy the last row that the grammar filled to the rows "
        "behind a placeholder (as is done behind a refused draft) instead of filling them with ones."
    ),
    remove_when="upstream leaves no row of a constrained request open",
    build=_build,
)
