"""p026: validation off the event loop."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import validate_ahead

LLM = "vllm.v1.engine.async_llm:AsyncLLM"
INPUTS = "vllm.v1.engine.input_processor:InputProcessor"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return validate_ahead.build(original, installation)


PATCH = Patch(
    id="p026-validate-ahead",
    title="Validate grammars before a request reaches the engine, off the API server's event loop",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            targets=(f"{LLM}.__init__", f"{LLM}.add_request", f"{LLM}.shutdown"),
            fingerprints={
                f"{LLM}.__init__": "5b21485a7b6e86ac",
                f"{LLM}.add_request": "17610fe64c574f11",
                f"{LLM}.shutdown": "0c0a2458ddabaf24",
                f"{INPUTS}.process_inputs": "5f0c2da7119853bf",
                f"{INPUTS}._validate_params": "ec4e87bdeec69fd9",
                "vllm.sampling_params:SamplingParams.verify": "0c1dba3c9523038d",
            },
        ),
    },
    unfit={"0.22.1": Unfit("grammars are validated on the event loop there", needed=True)},
    why=(
        "Every structured request is validated on the API server's event loop: while a grammar is parsed, up "
        "to the 5 seconds of a regex and without a limit for all others, no request is read and no token is "
        "sent."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/47595",
    upstream_change=(
        "Await the validation of structured outputs in `AsyncLLM.add_request` instead of calling it."
    ),
    remove_when="upstream validates off its event loop",
    build=_build,
)
