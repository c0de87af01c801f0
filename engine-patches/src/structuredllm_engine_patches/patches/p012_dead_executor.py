"""p012: the engine core hears of a lost rank at once, not after the tidying up."""

import os
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.failure.note import open_note
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import executor_failure

EXECUTOR = "vllm.v1.executor.multiproc_executor"
ENGINE_CORE = "vllm.v1.engine.core"
SHUTDOWN = f"{EXECUTOR}:MultiprocExecutor.shutdown"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return executor_failure.build_shutdown(original, open_note(os.environ), installation.logger)


PATCH = Patch(
    id="p012-dead-executor",
    title="An executor that lost a rank tells the engine core first and ends the other ranks within a second",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            targets=(SHUTDOWN,),
            fingerprints={
                SHUTDOWN: "b4822791fbd22831",
                f"{EXECUTOR}:MultiprocExecutor.start_worker_monitor": "0fc7d2859979a281",
                f"{ENGINE_CORE}:EngineCoreProc._handle_client_request": "9499192f287ab337",
                f"{ENGINE_CORE}:EngineCoreProc.run_engine_core": "c17894c117f294c9",
            },
        ),
    },
    unfit={"0.22.1": Unfit("an engine that lost a rank takes up to 9 s longer to say so there", needed=True)},
    why=(
        "When a rank's process is gone the executor first waits for the other ranks to leave, up to 5 s and "
        "4 s more after SIGTERM, and tells the engine core afterwards. The other ranks do wait, for tensors "
        "of the one that is gone. Until then /health is 200 and clients wait."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/53597",
    upstream_change=(
        "In monitor_workers call the failure callback before shutdown(), and wake the response queues."
    ),
    remove_when="the failure callback comes before the shutdown",
    build=_build,
)
