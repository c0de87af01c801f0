"""Test-only vLLM plugin: asynchronous scheduling of the V1 model runner on the CPU platform.

For vLLM 0.22.1 and 0.32.0. It gives the CPU build what the async path expects of a GPU, so that the real
scheduler, batch queue, grammar and IPC run without one. Nothing of it belongs into the product. It acts only
when STRUCTUREDLLM_TEST_CPU_ASYNC=1; the module imports nothing heavy because vLLM loads it in every process.
"""

import os


def register() -> None:
    """Entry point of `vllm.general_plugins`; may be called any number of times in a process."""
    if os.environ.get("STRUCTUREDLLM_TEST_CPU_ASYNC") != "1":
        return
    from . import faults, plumbing, refusals, stages

    plumbing.install()
    faults.install(os.environ)
    refusals.install(os.environ)
    stages.install(os.environ)
