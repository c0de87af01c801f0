"""p030: the nodes of a multi-node engine end together."""

import os
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.failure.note import open_note
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import node_failure

EXECUTOR = "vllm.v1.executor.multiproc_executor"
QUEUE = "vllm.distributed.device_communicators.shm_broadcast:MessageQueue"
POST_INIT = f"{EXECUTOR}:MultiprocExecutor._post_init_executor"
MONITOR = f"{EXECUTOR}:MultiprocExecutor.start_worker_monitor"
BUSY_LOOP = f"{EXECUTOR}:WorkerProc.worker_busy_loop"

BUILDERS = {
    POST_INIT: node_failure.build_post_init,
    MONITOR: node_failure.build_monitor,
    BUSY_LOOP: node_failure.build_busy_loop,
}


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    build = BUILDERS[f"{EXECUTOR}:{original.__qualname__}"]
    return build(original, open_note(os.environ), installation.logger)


PATCH = Patch(
    id="p030-lost-node",
    title="A node that lost its leader, or a leader that lost a node, ends at once, with a failing exit code",
    processes=(Process.FRONT_END, Process.ENGINE_CORE, Process.WORKER),
    fits={
        "0.32.0": Fit(
            targets=(POST_INIT, MONITOR, BUSY_LOOP),
            fingerprints={
                POST_INIT: "ec26bc3be50bd3ff",
                MONITOR: "0fc7d2859979a281",
                BUSY_LOOP: "0ad923e854167524",
                f"{EXECUTOR}:MultiprocExecutor._init_executor": "fa826f1fcedae5d1",
                f"{QUEUE}.__init__": "0aad36d3bca4f600",
                f"{QUEUE}.create_from_handle": "9178e7e70853b212",
                "vllm.entrypoints.cli.serve:run_headless": "c32dc3ee4bdb314f",
            },
        ),
    },
    unfit={"0.22.1": Unfit("a node that lost its leader waits there; recreate the whole group", needed=True)},
    why=(
        "Steps travel to the other nodes over ZeroMQ, which reconnects for ever. A node whose leader is gone "
        "waits for its next step until somebody ends it, holding its devices; a leader whose follower is gone"
        " waits for its answer, and notices nothing while idle. A headless node that lost a rank ends with "
        "code 0."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/32136",
    upstream_change=(
        "Watch the remote sockets of the message queues for disconnects, on both sides, and let run_headless "
        "return a failing exit code when its monitor ends."
    ),
    remove_when="upstream's nodes notice each other's end",
    build=_build,
)
