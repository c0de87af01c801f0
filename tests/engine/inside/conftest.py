"""Set-up of the tests that run inside the engine's environment: the patches are in place, as in an engine."""

import os

import pytest

os.environ.setdefault("STRUCTUREDLLM_TEST_CPU_ASYNC", "1")
os.environ.setdefault("STRUCTUREDLLM_TELEMETRY_PORT", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from structuredllm_engine_patches.installation import Installation, install


@pytest.fixture(scope="session", autouse=True)
def installation() -> Installation:
    """The patches of this process, applied as vLLM's plugin loading applies them."""
    import structuredllm_test_cpu_async

    structuredllm_test_cpu_async.register()
    return install()
