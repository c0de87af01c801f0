"""p022: errors that say why, as whole responses."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import error_bodies

HANDLERS = "vllm.entrypoints.serve.exception_handling.handlers.vllm_error"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return error_bodies.build_handler(original)


PATCH = Patch(
    id="p022-error-handler",
    title="Answer a failed structured request with a type, a code and the request id",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            # Names that `vllm_error_handler` looks up at each call; other modules hold that one by reference.
            targets=(f"{HANDLERS}:generation_error_handler", f"{HANDLERS}:exception_handler"),
            fingerprints={
                f"{HANDLERS}:generation_error_handler": "20508d7506eea70f",
                f"{HANDLERS}:exception_handler": "dd174c0758c7b61b",
                f"{HANDLERS}:vllm_error_handler": "eaf1a8edabf2f255",
            },
        ),
    },
    unfit={"0.22.1": Unfit("its error bodies have no string code and no request id either", needed=True)},
    why=(
        "vLLM's error model has an integer `code` and no request id, so the body of a failed request cannot "
        "say why it failed nor which request it was."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change="Allow a string as `ErrorInfo.code` and add the request id to it.",
    remove_when="upstream's error bodies have a string code and the request id",
    build=_build,
)
