"""p003: metrics and facts of the engine core, on a port of its own."""

import time
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process
from structuredllm_engine_patches.seams import core_telemetry
from structuredllm_engine_patches.telemetry.exposition import EngineView, render_info, render_metrics
from structuredllm_engine_patches.telemetry.server import start_server

ENGINE_CORE = "vllm.v1.engine.core"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return core_telemetry.build_loop(original, lambda core: _open_telemetry(core, installation))


def _open_telemetry(core: Any, installation: Installation) -> None:
    settings, logger = installation.settings, installation.logger
    facts = core_telemetry.read_facts(
        core.vllm_config,
        vllm_version=installation.vllm_version,
        package_version=installation.package_version,
        policy=settings.policy.value,
    )
    core_telemetry.observe(core, installation.observation, logger, time.perf_counter)
    view = EngineView(facts, installation.states, installation.observation)
    # Several engine cores share a pod when there are data parallel ranks in it: each takes the next port.
    rank = core.vllm_config.parallel_config.data_parallel_rank_local or 0
    port = settings.telemetry_port + rank if settings.telemetry_port else 0
    pages = {
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", lambda: render_metrics(view)),
        "/info": ("application/json", lambda: render_info(view)),
    }
    server = start_server(settings.telemetry_host, port, pages, logger)
    logger.info(
        "structuredllm-engine-patches %s on vLLM %s, policy %s: %s; telemetry port %s",
        facts.package_version,
        facts.vllm_version,
        facts.policy,
        ", ".join(f"{s.patch_id} {s.state.value}" for s in installation.states()),
        "off" if server is None else server.server_address[1],
    )


PATCH = Patch(
    id="p003-telemetry",
    title="Count grammar rejects and stale masks; serve /metrics and /info from the engine core",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.32.0": Fit(
            # Not `EngineCore.__init__`: that is where a spawned engine core loads the plugins, so it already
            # runs.
            targets=(
                f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop",
                f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop",
            ),
            fingerprints={
                f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop": "162de1070caf4f79",
                f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop": "162de1070caf4f79",
                "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
                "vllm.v1.structured_output:StructuredOutputManager.accept_tokens": "a8d98ca53cc8c08e",
            },
        ),
    },
    why=(
        "vLLM has no metric for structured output, a refused token reaches the client as an anonymous 500, "
        "and nothing outside can tell whether an engine runs patched. It only watches, so it is applied "
        "under every policy."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    upstream_change=(
        "Export structured-output metrics: refused tokens by backend, mask-fill and compile seconds, "
        "structured requests by state, and the batch queue's use."
    ),
    remove_when="upstream exports these facts itself",
    build=_build,
    always=True,
)
