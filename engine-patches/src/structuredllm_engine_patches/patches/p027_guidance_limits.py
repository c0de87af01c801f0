"""p027: limits of guidance's validation."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams.compile_pools import Role, pool_of
from structuredllm_engine_patches.seams.grammar_checks import build_validate_guidance
from structuredllm_engine_patches.seams.remote_compiler import SharedJobs

VALIDATE = "vllm.v1.structured_output.backend_guidance:validate_guidance_grammar"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return build_validate_guidance(original, SharedJobs(lambda: pool_of(installation, Role.PARSE)))


PATCH = Patch(
    id="p027-guidance-limits",
    title="Validate grammars for the guidance backend in worker processes with limits",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(VALIDATE,), fingerprints={VALIDATE: "3732e8dfdb0c5ea8"})},
    unfit={"0.22.1": Unfit("it belongs to p010", needed=True)},
    why=(
        "As p010, for what llguidance validates. It bounds the work of its lexer and parser, not that of "
        "reading a grammar: 40,000 rules take minutes. The engine core compiles it once more, in process, so "
        "what passes here ends there too."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/47595",
    upstream_change="See p026.",
    remove_when="p026 goes",
    build=_build,
)
