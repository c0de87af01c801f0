"""Hybrid models on the CPU: prefills are split where a state is to be cached.

With prefix caching (cache mode "align") vLLM has the Mamba-2 kernel write a state out from the middle of a
prefill. The CPU kernel (layers/mamba/ops/cpu/mamba_ssm.py) ignores `return_intermediate_states`. Without the
offer the scheduler splits the prefill at that position, as it does for the backends that cannot either.
"""

from dataclasses import replace
from typing import Any


def install() -> None:
    """Withdraw the offer to write states out from the middle of a prefill."""
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    original = MambaMixer2.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = original(self, vllm_config)
        if getattr(spec, "num_prefill_checkpoint_blocks", 0) == 0:
            return spec
        return replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    MambaMixer2.get_kv_cache_spec = get_kv_cache_spec
