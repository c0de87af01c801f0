"""Deliberate faults and emulations that tests switch on by environment variables.

STRUCTUREDLLM_TEST_ALLOW_UNPATCHED=1   lift upstream's refusal of V1 + pipeline + async without any cure
STRUCTUREDLLM_TEST_MUTATE=no-drain     the patch's decision says "drain nothing"
STRUCTUREDLLM_TEST_MUTATE=one-more     the patch's decision says "drain one batch at the most"
STRUCTUREDLLM_TEST_RAISE_WHEN=PATH     as soon as the file exists, with "STAGE METHOD" in it (METHOD:
                                       execute_model or sample_tokens), that stage's model runner raises

Emulated stage times are in `stages`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

MARK = "__structuredllm_test__"
REFUSAL = "pipeline parallelism with async scheduling"


def install(environ: Mapping[str, str]) -> None:
    """Apply the faults that `environ` asks for.

    Raises:
        ValueError: unknown mutation; a test that mutates nothing would prove nothing.
    """
    if environ.get("STRUCTUREDLLM_TEST_ALLOW_UNPATCHED") == "1":
        _allow_unpatched()
    mutation = environ.get("STRUCTUREDLLM_TEST_MUTATE", "")
    if mutation:
        _mutate_drain(mutation)
    raise_when = environ.get("STRUCTUREDLLM_TEST_RAISE_WHEN", "")
    if raise_when:
        for method in ("execute_model", "sample_tokens"):
            _raise_when(Path(raise_when), method)


def _allow_unpatched() -> None:
    from vllm.config.vllm import VllmConfig

    original = getattr(VllmConfig, "_get_v1_model_runner_unsupported_features", None)
    if original is None or hasattr(original, MARK):
        # Older versions of vLLM refuse nothing.
        return

    def without_refusal(self: Any) -> list[str]:
        return [feature for feature in original(self) if feature != REFUSAL]

    setattr(without_refusal, MARK, True)
    VllmConfig._get_v1_model_runner_unsupported_features = without_refusal


def _mutate_drain(mutation: str) -> None:
    from structuredllm_engine_patches.guided import drain

    original: Callable[..., int] = drain.batches_to_drain
    if hasattr(original, MARK):
        return

    def mutated(*args: Any, **kwargs: Any) -> int:
        right = original(*args, **kwargs)
        return {"no-drain": 0, "one-more": min(right, 1)}[mutation]

    if mutation not in ("no-drain", "one-more"):
        raise ValueError(f"STRUCTUREDLLM_TEST_MUTATE={mutation!r}: use no-drain or one-more")
    setattr(mutated, MARK, True)
    drain.batches_to_drain = mutated


def _raise_when(order: Path, method: str) -> None:
    from vllm.distributed.parallel_state import get_pp_group
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = getattr(GPUModelRunner, method)
    if hasattr(original, MARK):
        return

    # Names what it wraps: patches check the source of the same methods.
    @wraps(original)
    def fail_or_go_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        if order.exists():
            stage, what = order.read_text().split()
            if what == method and int(stage) == get_pp_group().rank_in_group:
                raise ValueError(f"injected into {method} of stage {stage}")
        return original(self, *args, **kwargs)

    setattr(fail_or_go_on, MARK, True)
    setattr(GPUModelRunner, method, fail_or_go_on)
