"""Make the toy model: a small Llama with random weights and a tokenizer of its own.

Runs in the engine environment (`python make_toy.py OUTPUT_FOLDER`). Six layers, so that three pipeline
stages get two each. Everything follows from SEED: two runs give the same files.
"""

import os
import random
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 45014
VOCABULARY = 2048
LAYERS = 6
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SUBJECTS = (
    "the pump",
    "a ferry",
    "our neighbour",
    "the old library",
    "a red kite",
    "the night shift",
    "my sister",
)
VERBS = ("carries", "repairs", "forgets", "measures", "sells", "paints", "delivers", "counts", "answers")
OBJECTS = (
    "twelve boxes",
    "a broken clock",
    "fresh bread",
    "the harbour map",
    "two letters",
    "an early train",
)
PLACES = (
    "in Lima",
    "near the river",
    "at noon",
    "before winter",
    "behind the mill",
    "on the last day of May",
)
KEYS = ("name", "age", "city", "country", "ok", "count", "price", "items", "why", "kind", "status", "total")


def sentences(rng: random.Random, count: int) -> list[str]:
    """Return training text: plain sentences mixed with small JSON objects, all made here."""
    lines = []
    for _ in range(count):
        words = " ".join(rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, PLACES))
        lines.append(f"{words.capitalize()}, said person {rng.randrange(1000)}.")
        key, other = rng.sample(KEYS, 2)
        flag = rng.choice(("true", "false"))
        lines.append(f'{{"{key}":"{rng.choice(OBJECTS)}","{other}":{rng.randrange(200)},"ok":{flag}}}')
    return lines


def make_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `sentences`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(rng, 4000), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL_TOKENS[2], pad_token=SPECIAL_TOKENS[0]
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def main() -> None:
    """Write the model and its tokenizer into the folder given as first argument."""
    output = Path(sys.argv[1])
    tokenizer = make_tokenizer(random.Random(SEED))  # noqa: S311 - wants repeatable text
    tokenizer.save_pretrained(output)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(output)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
