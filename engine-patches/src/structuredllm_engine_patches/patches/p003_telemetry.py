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
SCHEDULER = "vllm.v1.core.sched.scheduler"

# Not `EngineCore.__init__`: that is where a spawned engine core loads the plugins, so it already runs.
TARGETS = (f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop", f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop")


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return core_telemetry.build_loop(original, lambda core: _open_telemetry(core, installation))


def _open_telemetry(core: Any, installation: Installation) -> None:
    if installation.vllm_version in PATCH.fits:
        core_telemetry.observe(core, installation.observation, installation.logger, time.perf_counter)
        _serve(core, installation, counts=True)
        return
    try:
        _serve(core, installation, counts=False)
    except Exception:
        # Nothing is known of this version; that it cannot be described must not end it.
        installation.logger.exception("telemetry cannot describe vLLM %s", installation.vllm_version)


def _serve(core: Any, installation: Installation, *, counts: bool) -> None:
    settings, logger = installation.settings, installation.logger
    facts = core_telemetry.read_facts(
        core.vllm_config,
        vllm_version=installation.vllm_version,
        package_version=installation.package_version,
        policy=settings.policy.value,
    )
    view = EngineView(facts, installation.states, installation.observation if counts else None)
    # Several engine cores share a pod when there are data parallel ranks in it: each takes the next port.
    rank = core.vllm_config.parallel_config.data_parallel_rank_local or 0
    port = settings.telemetry_port + rank if settings.telemetry_port else 0
    pages = {
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", lambda: render_metrics(view)),
        "/info": ("application/json", lambda: render_info(view)),
    }
    server = start_server(settings.telemetry_host, port, pages, logger)
    logger.info(
        "structuredllm-engine-patches %s on vLLM %s, policy %s: %s; async scheduling %s; telemetry port %s",
        facts.package_version,
        facts.vllm_version,
        facts.policy,
        ", ".join(f"{s.patch_id} {s.state.value}" for s in installation.states()),
        "on" if facts.async_scheduling else "off",
        "off" if server is None else server.server_address[1],
    )


PATCH = Patch(
    id="p003-telemetry",
    title="Count grammar rejects and stale masks; serve /metrics and /info from the engine core",
    processes=(Process.ENGINE_CORE,),
    fits={
        "0.22.1": Fit(
            targets=TARGETS,
            fingerprints={
                f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop": "53d8fe5fce5bf8c9",
                f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop": "7a7f2114de4bda76",
                f"{SCHEDULER}:Scheduler.get_grammar_bitmask": "c8cfd2ba3a972b14",
                # Here a refused token shows only in how its request is stopped.
                f"{SCHEDULER}:Scheduler._handle_stopped_request": "0c28c382e4352dc3",
                f"{SCHEDULER}:Scheduler.update_from_output": "942b23ca9685d7b5",
            },
        ),
        "0.32.0": Fit(
            targets=TARGETS,
            fingerprints={
                f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop": "162de1070caf4f79",
                f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop": "162de1070caf4f79",
                f"{SCHEDULER}:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
                "vllm.v1.structured_output:StructuredOutputManager.accept_tokens": "a8d98ca53cc8c08e",
            },
        ),
    },
    # An engine that was allowed to start unpatched has to say so too: /info there, but nothing is counted.
    other_versions=Fit(targets=TARGETS, fingerprints={}),
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
