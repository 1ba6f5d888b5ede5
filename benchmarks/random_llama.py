"""A Llama with random weights, for recipes whose models cannot be had here.

    python benchmarks/random_llama.py DIR/llama-7b-random --tokenizer DIR/smollm2-135m

It has Llama-2-7b's shape, its weights in bfloat16 (13.8 GB), and the vocabulary of the tokenizer's
folder. `--layers 2 --width 32` makes a tiny one. A run shows that the recipe goes through, and what
it takes in memory and time; its scores are chance.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

LAYERS, WIDTH, HEADS = 32, 4096, 32


def write_model(folder, tokenizer_folder, *, layers=LAYERS, width=WIDTH, heads=HEADS):
    """Write model and tokenizer; the number of weights."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 43 // 16,  # 11008 of 4096
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def main():
    """Write what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--heads", type=int, default=HEADS)
    args = parser.parse_args()
    shape = {"layers": args.layers, "width": args.width, "heads": args.heads}
    count = write_model(args.folder, args.tokenizer, **shape)
    print(f"{args.folder}: {count / 1e9:.2f} billion weights")


if __name__ == "__main__":
    main()
