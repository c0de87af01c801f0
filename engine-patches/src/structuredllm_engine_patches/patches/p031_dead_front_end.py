"""p031: the front-end of a dead engine says so and ends."""

import os
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.failure.note import open_note
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import front_end_failure

LAUNCHER = "vllm.entrypoints.launchers.launcher"
STARTUP = f"{LAUNCHER}:NoSignalServer.startup"
SHUTDOWN = f"{LAUNCHER}:NoSignalServer.shutdown"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    if original.__name__ == "shutdown":
        return front_end_failure.build_shutdown(original)
    return front_end_failure.build_startup(original, open_note(os.environ), installation.logger, _keep_alive)


def _keep_alive() -> bool:
    from vllm import envs

    return bool(envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH)


PATCH = Patch(
    id="p031-dead-front-end",
    title="After the engine's death answer 503 for a second, then end within seconds and with a failing code",
    processes=(Process.FRONT_END,),
    fits={
        "0.32.0": Fit(
            targets=(STARTUP, SHUTDOWN),
            fingerprints={
                STARTUP: "7fe57f900b1569e0",
                SHUTDOWN: "0e767d5aea3552fb",
                f"{LAUNCHER}:serve_http": "69495e4bb227ac84",
                "vllm.v1.engine.core_client:MPClient.shutdown": "f7c015ebf363ab8a",
                "vllm.v1.engine.core_client:MPClient.start_engine_core_monitor": "8f55668e82e2dacc",
                "vllm.v1.engine.utils:CoreEngineProcManager.shutdown": "4085949b117fc2be",
                "vllm.v1.engine.utils:CoreEngineProcManager.monitor_engine_liveness": "9350ed4c805016de",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "the server of a dead engine may close without a failing exit code there", needed=True
        )
    },
    why=(
        "The server of a dead engine closes with the first request that fails, or up to 5 s later without "
        "one; it waits without limit for clients that do not read and for child processes; and it ends with "
        "code 0, so the kubelet calls the container Completed and its last words never reach the pod's "
        "status. VLLM_KEEP_ALIVE_ON_ENGINE_DEATH is respected."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/48966",
    upstream_change=(
        "Let serve_http raise after the engine's death so that the process ends with a failing code, and "
        "bound the graceful part of that shutdown."
    ),
    remove_when="upstream ends with a failing code and within a bound after the engine's death",
    build=_build,
)
