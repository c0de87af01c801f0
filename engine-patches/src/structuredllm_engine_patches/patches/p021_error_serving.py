"""p021: errors that say why, raised and written into streams."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import error_bodies

SERVING = "vllm.entrypoints.generate.base.serving:GenerateBaseServing"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return error_bodies.build_serving(original, installation.logger)


PATCH = Patch(
    id="p021-error-serving",
    title="Raise a failed request's error with its cause, and write the cause into streams",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{SERVING}._raise_if_error",
                f"{SERVING}._convert_generation_error_to_streaming_response",
                f"{SERVING}.create_streaming_error_response",
            ),
            fingerprints={
                f"{SERVING}._raise_if_error": "4f1c9c4e9aa5d9a3",
                f"{SERVING}._convert_generation_error_to_streaming_response": "0ae9912f1d92d871",
                f"{SERVING}.create_streaming_error_response": "a7e8bd4e46d33c00",
            },
        ),
    },
    unfit={"0.22.1": Unfit("every failed request ends there with the same anonymous error", needed=True)},
    why=(
        'Every failed request gets the message "Internal server error", type "InternalServerError" and the '
        "code 500: a client cannot tell its own bad schema from a broken engine, and whoever retries cannot "
        "tell whether that helps."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change="Make `GenerationError` carry a type and a code, and allow a string as `ErrorInfo.code`.",
    remove_when="upstream's errors say why a request failed",
    build=_build,
)
