"""p024: a grammar is asked once for each token."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import recovery

ACCEPT_TOKENS = "vllm.v1.structured_output:StructuredOutputManager.accept_tokens"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return recovery.build_accept(original)


PATCH = Patch(
    id="p024-verdict-once",
    title="Let the scheduler use the grammar's verdict that p008 has already asked for",
    processes=(Process.ENGINE_CORE,),
    fits={"0.32.0": Fit(targets=(ACCEPT_TOKENS,), fingerprints={ACCEPT_TOKENS: "a8d98ca53cc8c08e"})},
    unfit={"0.22.1": Unfit("the scheduler asks the grammar once, as p008 is not applied", needed=False)},
    why=(
        "p008 asks the grammar before a token is taken; asked a second time by upstream's own call, it would "
        "advance twice."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change="None of its own: with p008's change the scheduler asks once.",
    remove_when="p008 goes",
    build=_build,
)
