"""Convert SmolLM2-135M-Instruct from the gguf that its package carries to a checkpoint that vLLM loads.

Runs in the engine environment: `python convert_smollm2.py OUTPUT_FOLDER PACKAGE_FOLDER`.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    """Dequantise the weights to bfloat16 and save them with the tokenizer."""
    output, package = Path(sys.argv[1]), Path(sys.argv[2])
    found = sorted(package.rglob("*.gguf"))
    if len(found) != 1:
        raise SystemExit(f"expected one .gguf file below {package}, found {len(found)}")
    folder, name = str(found[0].parent), found[0].name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer.save_pretrained(output)
    model.save_pretrained(output)
    print(f"{model.config.num_hidden_layers} layers, {sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
