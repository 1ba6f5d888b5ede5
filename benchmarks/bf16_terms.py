"""Gradients of terms in 16 bits, and in float32 whose products are rounded to TF32, beside float32.

    python benchmarks/bf16_terms.py [--rows 4] [--tokens 16] [--draws 4]

The terms that compare passes or take differences of them, weight 1, dropout off, on a random BERT
of two layers and on MiniLM (`smoothtune.models.load.minilm_folder`), and those whose passes have
other masks on MiniLM with its dropout, on the CPU. *bf16*: all of the forward under autocast, as a
term would be if it were not computed in float32. *TF32*: the inputs of every matrix product,
forward and backward, are rounded to 10 bits here, half away from zero, as tensor cores of a GPU do
it. The same draws each time. Shown is the cosine with the gradient of float32, and the norm over
float32's; medians of the draws. Writes benchmarks/results/bf16-terms.md.
"""

import argparse
import logging
from pathlib import Path
from statistics import median

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSequenceClassification, BertConfig
from transformers import logging as transformers_logging

from smoothtune import (
    ALUM,
    LNSR,
    R3F,
    R4F,
    SMART,
    VAT,
    CrossHolder,
    DoubleBackprop,
    JacHess,
    Jacobian,
    Objective,
    SiFT,
)
from smoothtune.core.terms import Terms
from smoothtune.models.load import minilm_folder

RESULTS = Path(__file__).parent / "results"
TERMS = {
    "`lnsr`": lambda: LNSR(weight=1.0),
    "`r3f`, sigma 1e-5": lambda: R3F(weight=1.0),
    "`r3f`, sigma 1e-3": lambda: R3F(weight=1.0, sigma=1e-3),
    "`r3f`, sigma 1e-2": lambda: R3F(weight=1.0, sigma=1e-2),
    "`smart`": lambda: SMART(weight=1.0),
    "`vat`": lambda: VAT(weight=1.0),
    "`alum`": lambda: ALUM(weight=1.0),
    "`sift`": lambda: SiFT(weight=1.0),
    "`cross_holder`": lambda: CrossHolder(weight=1.0),
    "`jachess`": lambda: JacHess(weight=1.0, c=1.0),
    "`jacobian`": lambda: Jacobian(weight=1.0),
    "`jacobian`, directional": lambda: Jacobian(weight=1.0, estimator="directional"),
    "`double_backprop`": lambda: DoubleBackprop(weight=1.0),
}
OTHER_MASKS = {"`r3f`": lambda: R3F(weight=1.0), "`r4f`": lambda: R4F(weight=1.0)}
aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)


class TF32(TorchDispatchMode):
    """Rounds what matrix products read."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS:
            args = (*args[:-2], *map(rounded, args[-2:]))
        return function(*args, **kwargs or {})


def rounded(x):
    """To 10 bits after the leading one.

    >>> rounded(torch.tensor([1 + 2**-10 + 2**-12, 1 + 2**-11])).sub(1).mul(1024).tolist()
    [1.0, 1.0]
    """
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def gradient(model, make, batch, seed, around):
    """Of a term at the weights, flat."""
    method = make()
    torch.manual_seed(seed)
    objective, weighed = Objective(method).attach(model), {}
    record = objective._record
    objective._record = lambda summed: (weighed.update(summed.weighed), record(summed))
    with around:
        objective(model, batch)
        weights = list(model.parameters())
        parts = torch.autograd.grad(weighed[method.name], weights, allow_unused=True)
    objective.detach()
    flat = [torch.zeros_like(w) if g is None else g for g, w in zip(parts, weights, strict=True)]
    return torch.cat([part.flatten() for part in flat]).double()


def compared(model, make, batch, draws):
    """Cosine and relative norm, in bf16 and with TF32."""
    exact_terms = Terms.need_float32
    pairs = {"bf16": [], "TF32": []}
    for seed in range(draws):
        exact = gradient(model, make, batch, seed, torch.autocast("cpu", enabled=False))
        Terms.need_float32 = lambda *_, **__: False
        try:
            half = gradient(model, make, batch, seed, torch.autocast("cpu", torch.bfloat16))
        finally:
            Terms.need_float32 = exact_terms
        near = gradient(model, make, batch, seed, TF32())
        for name, other in (("bf16", half), ("TF32", near)):
            cosine = torch.dot(exact, other) / (exact.norm() * other.norm())
            pairs[name].append((cosine.item(), (other.norm() / exact.norm()).item()))
    return {
        name: [median(column) for column in zip(*of, strict=True)] for name, of in pairs.items()
    }


def models():
    """In training mode, with the terms that are measured on them."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    make = AutoModelForSequenceClassification
    config = BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=128, **none
    )
    config._attn_implementation = "eager"  # its products are seen
    yield "random, 2 layers, 32 wide", make.from_config(config).train(), TERMS
    minilm = make.from_pretrained(minilm_folder(), attn_implementation="eager", **none)
    yield "MiniLM", minilm.train(), TERMS
    drops = make.from_pretrained(minilm_folder(), attn_implementation="eager")
    yield "MiniLM, dropout 0.1", drops.train(), OTHER_MASKS


def main():
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--draws", type=int, default=4)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows, tokens, draws = arguments.rows, arguments.tokens, arguments.draws
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 20_000, (rows, tokens), generator=generator)
    labels = torch.randint(2, (rows,), generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    command = f"python benchmarks/bf16_terms.py --rows {rows} --tokens {tokens} --draws {draws}"
    page = ["# Terms in 16 bits", "", f"`{command}`", ""]
    page += ["Cosine with the gradient of float32, and norm over float32's, on the CPU.", ""]
    page += ["| model | term | bf16 | TF32, simulated |", "|---|---|---|---|"]
    torch.manual_seed(0)
    for name, model, terms in models():
        for term, make in terms.items():
            found = compared(model, make, batch, draws)
            cells = [f"{cosine:.3f}, x {size:.2g}" for cosine, size in found.values()]
            page.append(f"| {name} | {term} | {' | '.join(cells)} |")
            print(page[-1], flush=True)
    (RESULTS / "bf16-terms.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
