"""Command line and environment of the engine container, from the spec alone.

Owns which vLLM arguments follow from which field. Pure and deterministic: the same spec gives the same lists.
Argument names were read in vLLM 0.32 (vllm/engine/arg_utils.py, vllm/config/structured_outputs.py).
"""

import json
from typing import Any, Final

from structuredllm_operator.api.engine_spec import EnvVar
from structuredllm_operator.api.labels import (
    ENV_PATCHES,
    ENV_PLUGINS,
    ENV_TELEMETRY_PORT,
    HTTP_PORT,
    OWNED_ARGS,
    PLUGIN_NAME,
    TELEMETRY_PORT,
)
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.model_source import hub_env, model_path, needs_hub

_SHORTEST_ABBREVIATION: Final = 4


def served_name(spec: StructuredLLMSpec, name: str) -> str:
    """Return the model name in requests."""
    return spec.model.name or name


def build_args(spec: StructuredLLMSpec, name: str) -> list[str]:
    """Return the arguments after `vllm serve`; the user's own come last."""
    structured = {
        "backend": spec.structured_output.backend.value,
        "disable_any_whitespace": spec.structured_output.disable_any_whitespace,
    }
    args = [
        model_path(spec),
        f"--served-model-name={served_name(spec, name)}",
        "--host=0.0.0.0",
        f"--port={HTTP_PORT}",
        f"--tensor-parallel-size={spec.parallelism.tensor}",
        f"--pipeline-parallel-size={spec.parallelism.pipeline}",
        # Without it vLLM aborts running requests at SIGTERM (vllm/v1/engine/core.py).
        f"--shutdown-timeout={spec.shutdown.drain_seconds}",
        "--async-scheduling" if spec.engine.async_scheduling else "--no-async-scheduling",
        f"--structured-outputs-config={json.dumps(structured, separators=(',', ':'), sort_keys=True)}",
    ]
    if spec.parallelism.tensor * spec.parallelism.pipeline > 1:
        args.append("--distributed-executor-backend=mp")
    if spec.parallelism.data > 1:
        args.append(f"--data-parallel-size={spec.parallelism.data}")
    if spec.model.revision is not None and needs_hub(spec):
        args.append(f"--revision={spec.model.revision}")
    return [*args, *spec.engine.args]


def build_env(spec: StructuredLLMSpec) -> list[dict[str, Any]]:
    """Return the container's environment in wire form, names unique.

    The user's entries win over the operator's defaults, but for those that the API refuses
    (labels.OWNED_ENV) and for VLLM_PLUGINS, a comma-separated allow list in vLLM, to which ours is added.
    """
    env: dict[str, dict[str, Any]] = {
        ENV_PATCHES: {"value": spec.engine.patches.value.lower()},
        ENV_TELEMETRY_PORT: {"value": str(TELEMETRY_PORT)},
        "VLLM_NO_USAGE_STATS": {"value": "1"},
        # vLLM's 5 s is shorter than what proxies keep idle connections for: those it closes in the moment in
        # which they are used again cost a request each.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": {"value": "75"},
    }
    env.update(hub_env(spec))
    for variable in spec.engine.env:
        env[variable.name] = env_value(variable)
    return [{"name": name, **value} for name, value in env.items()]


def refused_abbreviation(args: list[str]) -> tuple[str, str] | None:
    """Return (argument, owned argument) for the first abbreviation of an owned argument, else None.

    vLLM's parser takes any unique prefix (`--tensor-par=2`), which a CEL rule cannot express in reasonable
    cost.
    """
    for arg in args:
        flag = arg.partition("=")[0].partition(".")[0].replace("_", "-")
        if not flag.startswith("--") or len(flag) < _SHORTEST_ABBREVIATION:
            continue
        for owned in OWNED_ARGS:
            if owned.startswith(flag):
                return flag, owned
    return None


def env_value(variable: EnvVar) -> dict[str, Any]:
    """Return the wire form of a variable's value; ours is added to VLLM_PLUGINS."""
    if variable.value_from is not None:
        return {"valueFrom": variable.value_from.model_dump(mode="json", by_alias=True, exclude_none=True)}
    value = variable.value or ""
    if variable.name == ENV_PLUGINS:
        plugins = [plugin for plugin in value.split(",") if plugin]
        value = ",".join(plugins if PLUGIN_NAME in plugins else [*plugins, PLUGIN_NAME])
    return {"value": value}
