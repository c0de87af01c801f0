"""p040: no asynchronous scheduling where the drain would be needed and is not in place."""

import importlib
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process
from structuredllm_engine_patches.patches import p001_batch_queue_drain
from structuredllm_engine_patches.seams import async_guard
from structuredllm_engine_patches.telemetry.observation import State


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    def why_no_drain() -> str:
        drain = p001_batch_queue_drain.PATCH
        if drain.fit_for(installation.vllm_version) is not None:
            # Whether it fits is known only when the engine core's module has been looked at.
            importlib.import_module(p001_batch_queue_drain.ENGINE_CORE)
        state = next(s for s in installation.states() if s.patch_id == drain.id)
        return "" if state.state is State.ACTIVE else f"{drain.id} is {state.state.value} ({state.reason})"

    return async_guard.build_post_init(original, why_no_drain=why_no_drain, log=installation.logger.warning)


PATCH = Patch(
    id="p040-async-guard",
    title="Switch asynchronous scheduling off where it needs the drain and that is not in place",
    processes=(Process.FRONT_END,),
    fits={},
    other_versions=Fit(targets=("vllm.config:VllmConfig.__post_init__",), fingerprints={}),
    why=(
        "An engine may start without p001: under the policy `optional`, on a version of vLLM that it was not "
        "proven on or whose source was changed. With more than one pipeline stage, asynchronous scheduling "
        "then builds stale masks, unless the model runner has the steps of a request spaced (V2 in 0.32). "
        "0.22 switches it on by itself with either runner, and 0.32 refuses to start with V1. With this "
        "patch the engine starts with asynchronous scheduling off, and the log and /info "
        "(`async_scheduling_forced_off`) say why. Where the drain is in place nothing changes."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/56250",
    upstream_change="None: upstream 0.32 guards itself by refusing to start.",
    remove_when="p001 goes, or no version that refuses nothing is used any more",
    build=_build,
    vital=True,
)
