"""p009: a grammar that allows nothing ends its request at once."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import dead_end

SCHEDULER = "vllm.v1.core.sched.scheduler"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return dead_end.build_get_grammar_bitmask(original, installation.logger)


PATCH = Patch(
    id="p009-dead-end",
    title="End a structured request whose mask allows no token",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(f"{SCHEDULER}:Scheduler.get_grammar_bitmask",),
            fingerprints={
                f"{SCHEDULER}:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
                "vllm.v1.structured_output:StructuredOutputManager.grammar_bitmask": "156d2425ca6eb654",
            },
        ),
    },
    unfit={"0.22.1": Unfit("a mask that allows nothing is not noticed there either", needed=True)},
    why=(
        "A schema can compile and still come to a point where no token is allowed. Upstream then samples "
        "from minus infinity everywhere, takes whatever comes out, and ends the request with an anonymous "
        "500. The empty mask is noticed when it is built and its request ends with the cause "
        "`grammar_dead_end`, which is the schema's fault (400). The request is ended by p008's seam."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change=(
        "After `grammar_bitmask`, end the requests whose row is empty and whose grammar has not terminated."
    ),
    remove_when="upstream notices empty masks",
    build=_build,
)
