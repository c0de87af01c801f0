"""Make the hybrid toy model: Mamba-2 and attention side by side, random weights, the toy's tokenizer.

Runs in the engine environment (`python make_toy_hybrid.py OUTPUT_FOLDER`). It has what vLLM issue 45014's
reporter has: a recurrent state beside a KV cache. Falcon-H1's architecture, because the CPU build runs it in
float32 and vLLM 0.32.0 loads it in pipeline stages (tests/cpu_engine/README.md tells of the others).
Everything follows from the toy's SEED.
"""

import random
import sys
from pathlib import Path

from make_toy import SEED, VOCABULARY, make_tokenizer  # type: ignore[import-not-found]

import torch  # isort: skip
from transformers import FalconH1Config, FalconH1ForCausalLM  # isort: skip

LAYERS = 6


def main() -> None:
    """Write the model and its tokenizer into the folder given as first argument."""
    output = Path(sys.argv[1])
    tokenizer = make_tokenizer(random.Random(SEED))  # noqa: S311 - wants repeatable text
    tokenizer.save_pretrained(output)
    torch.manual_seed(SEED)
    config = FalconH1Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        # A small state: it must fit into one block of the KV cache, and small blocks make prefix hits likely.
        mamba_d_ssm=256,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_chunk_size=32,
        # The default of 0.02 with tiny layers lets every position answer alike.
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = FalconH1ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(output)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
