"""p011: a rank that failed in a step leaves, whichever stage it is."""

import os
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.failure.note import open_note
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import rank_failure

EXECUTOR = "vllm.v1.executor.multiproc_executor"
EXECUTE = f"{EXECUTOR}:WorkerProc._execute_worker_rpc"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return rank_failure.build_execute(original, open_note(os.environ), installation.logger)


PATCH = Patch(
    id="p011-dead-rank",
    title="A rank whose forward pass or sampling failed ends its process, also where nobody reads its answer",
    processes=(Process.WORKER,),
    fits={
        "0.32.0": Fit(
            targets=(EXECUTE,),
            fingerprints={
                EXECUTE: "0aa8b529cb572818",
                f"{EXECUTOR}:WorkerProc.enqueue_output": "2974018b776095ad",
                f"{EXECUTOR}:MultiprocExecutor.collective_rpc": "a9a4eb71e31c40de",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "a failed stage before the last is told to nobody there; a probe that asks for a token finds it",
            needed=True,
        )
    },
    why=(
        "The executor reads the answer of one rank only, that of the last pipeline stage. An exception on any"
        " other stage is logged and told to nobody: the other stages wait for its tensors, every request "
        "hangs for ever, /health stays 200 and the pod stays Ready."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/23985",
    upstream_change=(
        "Let a rank whose execute_model or sample_tokens raised, and whose answer is not read, leave its "
        "busy loop with a code that says failure; the monitor of worker processes does the rest."
    ),
    remove_when="an error on any rank reaches the engine core",
    build=_build,
)
