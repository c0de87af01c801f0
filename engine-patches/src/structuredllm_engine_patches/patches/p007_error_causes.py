"""p007: why a request ended, in its last output."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.guided.causes import Cause
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import error_causes
from structuredllm_engine_patches.telemetry.metrics import GRAMMAR_FAILURES

SCHEDULER = "vllm.v1.core.sched.scheduler"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    for cause in Cause:
        installation.observation.add(GRAMMAR_FAILURES, 0, cause=cause)

    def count(cause: Cause) -> None:
        installation.observation.add(GRAMMAR_FAILURES, cause=cause)

    return error_causes.build(original, count)


PATCH = Patch(
    id="p007-error-causes",
    title="Say in the last output of a structured request why it ended",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{SCHEDULER}:Scheduler._handle_stopped_request",
                f"{SCHEDULER}:Scheduler.update_from_output",
            ),
            fingerprints={
                f"{SCHEDULER}:Scheduler._handle_stopped_request": "d4a9eacdb6c0c4cf",
                f"{SCHEDULER}:Scheduler.update_from_output": "83f03f419483a1a0",
                f"{SCHEDULER}:Scheduler._handle_blocked_waiting_request": "964002e226d87d3c",
                "vllm.v1.structured_output.request:StructuredOutputRequest._check_grammar_completion": (
                    "90f60279e4c8a181"
                ),
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "refused tokens and failed compilations end requests there too, and their outputs say no cause",
            needed=True,
        )
    },
    why=(
        "A request whose grammar refused a token, does not compile or allows nothing ends with the finish "
        "reason `error` and nothing else, so neither the client nor an operator can tell a bad schema from a "
        "broken engine. The cause is put into the stop reason of the request's last output, which travels "
        "to the front-end, and is counted."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change=(
        "Give `EngineCoreOutput` the cause of a `FinishReason.ERROR`, and set it where `update_from_output` "
        "ends a request for a refused token or a failed compilation."
    ),
    remove_when="upstream's outputs say why a request failed",
    build=_build,
)
