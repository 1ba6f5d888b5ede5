"""Steps of a large decoder whose base weights are in few bits: time and memory.

    python benchmarks/large_decoder.py [--base bfloat16 ...] [--method plain ...] [--steps 2]
        [--batch 1] [--length 32]

A Llama of TinyLlama's shape with random weights, made in bfloat16 and, with `4bit`, quantized to
NF4 by bitsandbytes; `float32` is the same in float32. LoRA of rank 8 on all linear layers but the
head, in float32; AdamW; bf16 autocast, as `bf16=True` sets it; random tokens, all of them labels.
JacHess as it is by default, with weight 1 and layers that weigh the same, so that it does not
measure them first. Each row is a process of its own with one thread; seconds are medians over the
steps after a first one. Peak memory is that of the process from the first step on; what it holds
before stands beside it.

Writes benchmarks/results/large-decoder.json and .md; rows that are not measured again are kept.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
BASES, NAMES = ["float32", "bfloat16", "4bit"], ["plain", "jachess"]
LAYERS, VOCABULARY = 22, 32000


def base_model(base):
    """The frozen language model, and its number of weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if base == "float32" else torch.bfloat16)
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    count = sum(weight.numel() for weight in model.parameters())
    if base == "4bit":
        quantize(model.model)
    return model, count


def quantize(part):
    """Put NF4 layers in the place of linear ones, one at a time."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for parent in list(part.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear:
                shape = layer.in_features, layer.out_features
                made = Linear4bit(*shape, bias=False, compute_dtype=torch.bfloat16, device="meta")
                weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
                made.weight = weight.to("cpu")  # quantizes
                setattr(parent, name, made)


def measure(base, name, steps, batch_size, length):
    """Seconds and bytes of a step, in this process."""
    from peft import LoraConfig, get_peft_model

    from smoothtune import METHODS, Objective
    from smoothtune.memory import peak, reset_peak

    torch.set_num_threads(1)
    model, count = base_model(base)
    config = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
    model = get_peft_model(model, config).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    fields = {"weight": 1.0, "smoothness": [1.0] * LAYERS} if name == "jachess" else {}
    objective = Objective(METHODS[name](**fields)).bind(model, optimizer, 100)
    generator = torch.Generator().manual_seed(1)
    reset_peak()
    before, taken, losses = peak(), [], []
    for _ in range(1 + steps):
        ids = torch.randint(5, VOCABULARY, (batch_size, length), generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        start = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = objective(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        losses.append({key: value.item() for key, value in objective.terms.items()})
    wall, processor = (statistics.median(each) for each in zip(*taken[1:], strict=True))
    return {
        "base": base,
        "method": name,
        "weights": count,
        "trained": sum(weight.numel() for weight in weights),
        "seconds": wall,
        "processor_seconds": processor,
        "bytes_before": before,
        "bytes_at_peak": peak(),
        "steps": steps,
        "batch": batch_size,
        "length": length,
        "terms": losses,
    }


def table(rows):
    """The page."""
    first = rows[0]
    sizes = " ".join(f"--{name} {first[name]}" for name in ("steps", "batch", "length"))
    lines = [
        "# Steps of a large decoder with base weights in few bits",
        "",
        f"`python benchmarks/large_decoder.py {sizes}`",
        "",
        "| base weights | method | processor time of a step, s | wall, s | memory before, GiB "
        "| at the peak, GiB | term after the steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        term = row["terms"][-1].get(f"loss/{row['method']}")
        cells = [
            row["base"],
            row["method"],
            f"{row['processor_seconds']:.1f}",
            f"{row['seconds']:.1f}",
            *(f"{row[key] / 2**30:.2f}" for key in ("bytes_before", "bytes_at_peak")),
            "" if term is None else f"{term:.4g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"{first['weights']:,} weights, {first['trained']:,} of adapters; batches of "
        f"{first['batch']} x {first['length']} tokens, medians of {first['steps']} steps.",
        "",
    ]
    return "\n".join(lines)


def main():
    """Measure every row in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", nargs="+", choices=BASES, default=BASES)
    parser.add_argument("--method", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(*args.row, args.steps, args.batch, args.length)))
        return
    path = RESULTS / "large-decoder.json"
    found = json.loads(path.read_text()) if path.exists() else []
    rows = {(row["base"], row["method"]): row for row in found}
    sizes = ["--steps", args.steps, "--batch", args.batch, "--length", args.length]
    for base in args.base:
        for name in args.method:
            command = [sys.executable, __file__, "--row", base, name, *map(str, sizes)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows[base, name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{base} {name}: {rows[base, name]['processor_seconds']:.1f} s", flush=True)
            order = [(b, n) for b in BASES for n in NAMES]
            ordered = [rows[key] for key in order if key in rows]
            path.write_text(json.dumps(ordered, indent=1) + "\n")
            path.with_suffix(".md").write_text(table(ordered))


if __name__ == "__main__":
    main()
