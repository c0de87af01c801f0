"""p025: threads that wait for no compilation."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import compile_threads

MANAGER = "vllm.v1.structured_output:StructuredOutputManager"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return compile_threads.build(original, installation)


PATCH = Patch(
    id="p025-compile-threads",
    title="Let no compilation hold a thread of the engine core",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{MANAGER}.__init__",),
            fingerprints={
                f"{MANAGER}.__init__": "1a868e1be54c7937",
                f"{MANAGER}.grammar_init": "c5c2b7dd49cfbaf9",
                f"{MANAGER}._create_grammar": "4db9cec1115ecb37",
                f"{MANAGER}.clear_backend": "4d79cae5a1e31802",
            },
        ),
    },
    unfit={"0.22.1": Unfit("it belongs to p010", needed=True)},
    why=(
        "The engine core has half as many compile threads as the machine has CPUs, and each waits until its "
        "compilation ends: with p010 as many slow grammars would hold up all structured requests for their "
        "whole time limit."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/51660",
    upstream_change=(
        "Make `StructuredOutputManager` take a future from its backend instead of blocking a thread on it."
    ),
    remove_when="p010 goes",
    build=_build,
)
