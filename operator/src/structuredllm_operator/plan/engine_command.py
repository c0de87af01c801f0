"""Which command line, environment and ports an engine container has, by the type of engine. Pure.

The only place where types are told apart for rendering; the rest of the package knows one black box.
"""

from typing import Any

from structuredllm_operator.api.engine_spec import EngineType
from structuredllm_operator.api.labels import HTTP_PORT, TELEMETRY_PORT
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan import engine_args, engine_lmdeploy


def build_command(spec: StructuredLLMSpec) -> list[str]:
    """Return the container's command."""
    if spec.engine.type is EngineType.LMDEPLOY:
        return engine_lmdeploy.build_command()
    return ["vllm", "serve"]


def build_args(spec: StructuredLLMSpec, name: str) -> list[str]:
    """Return the command's arguments; the user's own come last."""
    if spec.engine.type is EngineType.LMDEPLOY:
        return engine_lmdeploy.build_args(spec, name)
    return engine_args.build_args(spec, name)


def build_env(spec: StructuredLLMSpec) -> list[dict[str, Any]]:
    """Return the container's environment in wire form."""
    if spec.engine.type is EngineType.LMDEPLOY:
        return engine_lmdeploy.build_env(spec)
    return engine_args.build_env(spec)


def build_ports(spec: StructuredLLMSpec) -> list[dict[str, Any]]:
    """Return the container's ports: LMDeploy has no telemetry port, its /metrics is on the API's."""
    ports: list[dict[str, Any]] = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if spec.engine.type is EngineType.VLLM:
        ports.append({"name": "telemetry", "containerPort": TELEMETRY_PORT, "protocol": "TCP"})
    return ports
