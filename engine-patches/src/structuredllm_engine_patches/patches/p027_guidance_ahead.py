"""p027: guidance's validation off the event loop."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process
from structuredllm_engine_patches.seams import guidance_checks

VALIDATE = "vllm.v1.structured_output.backend_guidance:validate_guidance_grammar"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return guidance_checks.build(original)


PATCH = Patch(
    id="p027-guidance-ahead",
    title="Validate a grammar for the guidance backend once, off the API server's event loop",
    processes=(Process.FRONT_END,),
    fits={"0.32.0": Fit(targets=(VALIDATE,), fingerprints={VALIDATE: "3732e8dfdb0c5ea8"})},
    why="As p026, for the grammars that llguidance validates, which bounds its own work.",
    upstream="https://github.com/vllm-project/vllm/issues/47595",
    upstream_change="See p026.",
    remove_when="p026 goes",
    build=_build,
)
