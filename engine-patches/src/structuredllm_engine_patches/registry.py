"""The register of patches. Data and the glue between a patch and its seam; imports no vLLM."""

import importlib
from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Patch, Process
from structuredllm_engine_patches.seams import batch_queue, core_telemetry, runner_validation
from structuredllm_engine_patches.telemetry.exposition import render_info, render_metrics
from structuredllm_engine_patches.telemetry.observation import Observation, State
from structuredllm_engine_patches.telemetry.server import start_server

ENGINE_CORE = "vllm.v1.engine.core"
PROVEN_VERSIONS = ("0.32.0",)

Function = Callable[..., Any]


def _build_drain(original: Function, _: Installation) -> Function:
    return batch_queue.build_step(original)


def _build_features(original: Function, installation: Installation) -> Function:
    def drain_is_active() -> bool:
        # The front-end validates its configuration before it needs the engine core's module.
        importlib.import_module(ENGINE_CORE)
        return installation.state_of(BATCH_QUEUE_DRAIN.id) is State.ACTIVE

    return runner_validation.build_features(original, drain_is_active=drain_is_active)


def _build_telemetry(original: Function, installation: Installation) -> Function:
    return core_telemetry.build_loop(original, lambda core: _open_telemetry(core, installation))


def _open_telemetry(core: Any, installation: Installation) -> None:
    settings, logger = installation.settings, installation.logger
    facts = core_telemetry.read_facts(
        core.vllm_config,
        vllm_version=installation.vllm_version,
        package_version=installation.package_version,
        policy=settings.policy.value,
    )
    observation = Observation()
    core_telemetry.observe(core, observation, logger)
    view = core_telemetry.make_view(core, facts, installation.states, observation)
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


BATCH_QUEUE_DRAIN = Patch(
    id="p001-batch-queue-drain",
    title="Process queued batches until no mask of the deferred batch can be stale",
    targets=(f"{ENGINE_CORE}:EngineCore.step_with_batch_queue",),
    processes=(Process.ENGINE_CORE,),
    vllm_versions=PROVEN_VERSIONS,
    why=(
        "With three or more pipeline stages and asynchronous scheduling on the V1 model runner the engine "
        "defers a batch, processes exactly one older batch and builds the mask. If the older batch is not "
        "the request's previous step (empty steps while a grammar compiles, steps of plain requests, "
        "prefill chunks) the mask is one token behind, the sampled token is refused by the grammar and the "
        "request ends with an anonymous 500."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/45014",
    remove_when=(
        "upstream drains the batch queue for deferred batches on the V1 runner, or no supported model needs"
        " that runner any more"
    ),
    fingerprints={
        f"{ENGINE_CORE}:EngineCore.step_with_batch_queue": "ab454194e7e220a9",
        f"{ENGINE_CORE}:EngineCore._process_aborts_queue": "63a0a75ba97bed88",
        f"{ENGINE_CORE}:EngineCoreProc._process_engine_step": "c7b8548c56032748",
        "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule": "131e68f61c31398d",
    },
    build=_build_drain,
)

ALLOW_V1_PIPELINE_ASYNC = Patch(
    id="p002-allow-v1-pp-async",
    title="Allow pipeline + asynchronous scheduling on the V1 model runner while the drain is active",
    targets=("vllm.config.vllm:VllmConfig._get_v1_model_runner_unsupported_features",),
    processes=(Process.FRONT_END,),
    vllm_versions=PROVEN_VERSIONS,
    why=(
        "vLLM 0.32 refuses the combination at start-up because of the fault that p001 cures, so models that"
        " only the V1 runner supports lose asynchronous scheduling. The refusal stays with speculative "
        "decoding."
    ),
    upstream="https://github.com/vllm-project/vllm/pull/56250",
    remove_when="p001 goes, or upstream lifts the refusal",
    fingerprints={
        "vllm.config.vllm:VllmConfig._get_v1_model_runner_unsupported_features": "075a6453dc626561"
    },
    build=_build_features,
)

TELEMETRY = Patch(
    id="p003-telemetry",
    title="Count grammar rejects and stale masks; serve /metrics and /info from the engine core",
    # Not `EngineCore.__init__`: that is where a spawned engine core loads the plugins, so it already runs.
    targets=(
        f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop",
        f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop",
    ),
    processes=(Process.ENGINE_CORE,),
    vllm_versions=PROVEN_VERSIONS,
    why=(
        "vLLM has no metric for structured output, a refused token reaches the client as an anonymous 500, "
        "and nothing outside can tell whether an engine runs patched. It only watches, so it is applied "
        "under every policy."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/18783",
    remove_when="upstream exports these facts itself",
    fingerprints={
        f"{ENGINE_CORE}:EngineCoreProc.run_busy_loop": "162de1070caf4f79",
        f"{ENGINE_CORE}:DPEngineCoreProc.run_busy_loop": "162de1070caf4f79",
        "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": "186cae8dd7d87315",
        "vllm.v1.structured_output:StructuredOutputManager.accept_tokens": "a8d98ca53cc8c08e",
    },
    build=_build_telemetry,
    always=True,
)

PATCHES = (BATCH_QUEUE_DRAIN, ALLOW_V1_PIPELINE_ASYNC, TELEMETRY)
"""In the order of application."""
