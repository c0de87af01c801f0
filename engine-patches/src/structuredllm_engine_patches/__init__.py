"""Version-checked patches and telemetry for vLLM's structured output with pipelines and async scheduling.

This module is the entry point that vLLM loads in every one of its processes. vLLM swallows an error of that
load but not an error of the call, so nothing may be imported here: whatever can fail has to fail inside
`register()`, where it stops the engine.
"""


def register() -> None:
    """Apply the patches that `STRUCTUREDLLM_PATCHES` asks for; re-entrant, called in every vLLM process.

    Raises: EnginePatchError: with policy `required`, a patch does not fit the installed vLLM; always for an
        environment
            variable with a value that means nothing.
    """
    from structuredllm_engine_patches.installation import install

    install()
