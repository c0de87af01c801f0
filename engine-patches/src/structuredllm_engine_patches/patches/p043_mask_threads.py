"""p043: slow masks are filled by several threads."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process
from structuredllm_engine_patches.seams import mask_threads

MANAGER = "vllm.v1.structured_output"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return mask_threads.build_grammar_init(original)


PATCH = Patch(
    id="p043-mask-threads",
    title="Fill the masks of a step by several threads where they take long, however few they are",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{MANAGER}:StructuredOutputManager.grammar_init",),
            fingerprints={
                f"{MANAGER}:StructuredOutputManager.grammar_init": "c5c2b7dd49cfbaf9",
                f"{MANAGER}:StructuredOutputManager.grammar_bitmask": "156d2425ca6eb654",
                f"{MANAGER}:StructuredOutputManager._fill_bitmasks": "1319b98323d5b0ba",
            },
        ),
        "0.22.1": Fit(
            targets=(f"{MANAGER}:StructuredOutputManager.grammar_init",),
            fingerprints={
                f"{MANAGER}:StructuredOutputManager.grammar_init": "527f41b3e07a1549",
                f"{MANAGER}:StructuredOutputManager.grammar_bitmask": "e25d95a6dac02c05",
                f"{MANAGER}:StructuredOutputManager._fill_bitmasks": "1319b98323d5b0ba",
            },
        ),
    },
    why=(
        "Upstream fills up to 128 rows one after the other on the engine core's loop. A row near the end of a"
        " string with maxLength takes over a millisecond (49,152 tokens), so 43 such requests hold the "
        "pipeline up for 100 ms and more. The pool that upstream uses above 128 rows is used whenever the "
        "rows of the last steps were slow, in pieces that keep all threads busy."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/51331",
    upstream_change=(
        "In `StructuredOutputManager.grammar_bitmask`, choose the parallel path by the time that the rows of "
        "the last steps took instead of by `fill_bitmask_parallel_threshold`, and the batch size by the "
        "number of workers."
    ),
    remove_when="upstream chooses the parallel path by time",
    build=_build,
)
