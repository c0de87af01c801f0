"""p023: errors that say why, in the Responses API."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import error_responses

SERVING = "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return error_responses.build(original)


PATCH = Patch(
    id="p023-error-responses",
    title="End a Responses stream of a failed request with an error event, and never call it completed",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{SERVING}.responses_stream_generator",
                f"{SERVING}.responses_full_generator",
                f"{SERVING}._run_background_request",
            ),
            fingerprints={
                f"{SERVING}.responses_stream_generator": "38dc8db86d2c556c",
                f"{SERVING}.responses_full_generator": "61802eef4bc2c9bf",
                f"{SERVING}._run_background_request": "29f94cba24fda59a",
            },
        ),
    },
    unfit={"0.22.1": Unfit("its streams of the Responses API were not looked at", needed=True)},
    why=(
        "In a stream of the Responses API the error body of a failed request does not pass upstream's own "
        "validation of stream events, and the connection breaks off without a word. With the parsing context "
        "a failed request's whole answer is called completed, and one made in the background never ends."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change=(
        "Add an error event to `StreamingResponsesResponse` and yield it for a `GenerationError`; check the "
        "finish reason of every context."
    ),
    remove_when="upstream sends an error event in streams of the Responses API",
    build=_build,
)
