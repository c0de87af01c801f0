"""p010: limits of the compilation of grammars."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import compile_limits

MODULE = "vllm.v1.structured_output.backend_xgrammar"


def _build(original: Callable[..., Any], installation: Installation) -> Callable[..., Any]:
    return compile_limits.build(original, installation)


PATCH = Patch(
    id="p010-compile-limits",
    title="Compile and validate grammars in worker processes with limits of time and memory",
    processes=(Process.FRONT_END, Process.ENGINE_CORE),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{MODULE}:XgrammarBackend.__post_init__",
                f"{MODULE}:XgrammarBackend.compile_grammar",
                f"{MODULE}:XgrammarBackend.destroy",
                f"{MODULE}:validate_xgrammar_grammar",
            ),
            fingerprints={
                f"{MODULE}:XgrammarBackend.__post_init__": "2fa50b44d0f72db2",
                f"{MODULE}:XgrammarBackend.compile_grammar": "215da2e8d7ff278a",
                f"{MODULE}:XgrammarBackend.destroy": "c5fa5a11b86f1832",
                f"{MODULE}:validate_xgrammar_grammar": "12ccaa876ee8085d",
                "vllm.v1.structured_output.utils:compile_regex_with_timeout": "0953066a67a38a0a",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "compilations have no limit there; the gateway's schema limits are what holds", needed=True
        )
    },
    why=(
        "A schema, regex or grammar can take minutes and gigabytes to compile. vLLM compiles in threads of "
        "the engine core: a JSON schema and EBNF without any limit, a regex with one after which its thread "
        "goes on; and it parses each of them on the API server's event loop before. A few such requests stop "
        "everybody. A compilation that crashes takes the engine with it."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/51660",
    upstream_change=(
        "Give `XgrammarBackend` an interface for a compiler in another process (xgrammar can serialize what "
        "it compiles) with a time and a memory limit for all kinds of grammars, and let the front-end ask it."
    ),
    remove_when="upstream compiles where a compilation can be stopped",
    build=_build,
)
