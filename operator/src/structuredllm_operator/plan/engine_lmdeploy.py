"""Command line and environment of an LMDeploy engine (`lmdeploy serve api_server`, TurboMind). Pure.

Argument names were read in LMDeploy 0.16.0 (lmdeploy/cli/serve.py, lmdeploy/cli/utils.py).

FLOOR is the first release without a known fault of guided decoding in TurboMind. By the project's history:
    0.12.0  one matcher per request instead of one shared by pooled ones (pull request 4223; faults in 4167)
    0.12.1  ranks of tensor parallelism no longer race for it (4341)
    0.12.2  rows of requests without a grammar are open, not closed (4349)
    0.12.3  a batch with finished requests does not stop the engine (4456)
    0.16.0  matchers accept tokens of requests that generate only, none left over from before (4605)
The version is in no answer of the server, so the container checks it before it starts.
"""

import re
from typing import Any, Final

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.api.engine_spec import Accelerator
from structuredllm_operator.api.labels import HTTP_PORT
from structuredllm_operator.api.v1alpha1 import Backend, StructuredLLMSpec
from structuredllm_operator.errors import SpecError
from structuredllm_operator.plan.engine_args import env_value, served_name
from structuredllm_operator.plan.model_source import hub_env, model_path, needs_hub

FLOOR: Final = (0, 16, 0)

OWNED_ARGS: Final = (
    "--api-keys",
    "--async",
    "--backend",
    "--cp",
    "--device",
    "--dist-init-addr",
    "--dp",
    "--ep",
    "--model-name",
    "--nnodes",
    "--node-rank",
    "--proxy-url",
    "--revision",
    "--server-name",
    "--server-port",
    "--ssl",
    "--tp",
)
"""LMDeploy arguments that follow from the spec, or that would cut operator and gateway off from it."""

_LEAST_ABBREVIATION: Final = 4

# The words after "error:" reach the pod's status and from there the resource's.
_GUARD: Final = """\
import importlib.metadata as m, os, re, sys
found = m.version("lmdeploy")
have = tuple(int(part) for part in re.findall(r"[0-9]+", found)[:3])
if have < {floor}:
    sys.exit("error: LMDeploy " + found + " has known faults of guided decoding, {text} is the first without:"
             " use a newer image in spec.engine.image")
os.execvp("lmdeploy", ["lmdeploy", "serve", "api_server", *sys.argv[1:]])
"""


def build_command() -> list[str]:
    """Return a command that refuses an LMDeploy below FLOOR and else becomes `lmdeploy serve api_server`."""
    text = ".".join(str(part) for part in FLOOR)
    return ["python3", "-c", _GUARD.format(floor=FLOOR, text=text)]


def build_args(spec: StructuredLLMSpec, name: str) -> list[str]:
    """Return the arguments after `api_server`; the user's own come last.

    Raises:
        SpecError: the spec asks for what LMDeploy cannot do, or sets an argument that is ours.
    """
    check_spec(spec)
    args = [
        model_path(spec),
        "--backend=turbomind",
        f"--model-name={served_name(spec, name)}",
        "--server-name=0.0.0.0",
        f"--server-port={HTTP_PORT}",
        f"--tp={spec.parallelism.tensor}",
        f"--async={int(spec.engine.async_scheduling)}",
    ]
    if spec.model.revision is not None and needs_hub(spec):
        args.append(f"--revision={spec.model.revision}")
    return [*args, *spec.engine.args]


def build_env(spec: StructuredLLMSpec) -> list[dict[str, Any]]:
    """Return the container's environment in wire form; the user's entries win."""
    # As with vLLM: 5 s is shorter than what proxies keep idle connections for.
    env: dict[str, dict[str, Any]] = {"UVICORN_TIMEOUT_KEEP_ALIVE": {"value": "75"}, **hub_env(spec)}
    for variable in spec.engine.env:
        env[variable.name] = env_value(variable)
    return [{"name": key, **value} for key, value in env.items()]


def check_spec(spec: StructuredLLMSpec) -> None:
    """Refuse what LMDeploy cannot do; the CRD's CEL rules say the same.

    Raises:
        SpecError: field and cure.
    """
    if spec.engine.accelerator is not Accelerator.GPU:
        raise SpecError(
            Reason.INVALID_SPEC,
            "spec.engine.accelerator: LMDeploy's TurboMind needs a GPU: set it to gpu, or"
            " spec.engine.type to vllm",
        )
    if spec.parallelism.pipeline != 1:
        raise SpecError(
            Reason.INVALID_SPEC,
            f"spec.parallelism.pipeline is {spec.parallelism.pipeline}, but LMDeploy has no pipeline"
            " parallelism: set it to 1 and use spec.parallelism.tensor",
        )
    if spec.multi_node.node_count > 1 or spec.parallelism.data > 1:
        raise SpecError(
            Reason.INVALID_SPEC,
            "spec.multiNode.nodeCount and spec.parallelism.data must be 1 with spec.engine.type lmdeploy: the"
            " operator renders several nodes and data parallelism for vLLM only",
        )
    if spec.parallelism.tensor & (spec.parallelism.tensor - 1):
        raise SpecError(
            Reason.INVALID_SPEC,
            f"spec.parallelism.tensor is {spec.parallelism.tensor}, but LMDeploy takes 1, 2, 4, 8, ... only:"
            " correct it",
        )
    if spec.structured_output.backend is Backend.GUIDANCE:
        raise SpecError(
            Reason.INVALID_SPEC,
            "spec.structuredOutput.backend is guidance, but LMDeploy has xgrammar only: set xgrammar or auto",
        )
    refused = refused_argument(list(spec.engine.args))
    if refused is not None:
        raise SpecError(
            Reason.INVALID_SPEC,
            f"spec.engine.args: {refused[0]} stands for {refused[1]}, which the operator sets: remove it and"
            " use the field of the spec",
        )


def refused_argument(args: list[str]) -> tuple[str, str] | None:
    """Return (argument, owned argument) for the first owned argument or abbreviation of one, else None.

    LMDeploy's parser takes underscores for dashes and any unique prefix.
    """
    for arg in args:
        flag = re.split(r"[=.]", arg, maxsplit=1)[0].replace("_", "-")
        for owned in OWNED_ARGS:
            if flag == owned or (
                flag.startswith("--") and len(flag) >= _LEAST_ABBREVIATION and owned.startswith(flag)
            ):
                return flag, owned
    return None
